#include "tests/process/promises/receives.h"

#include <utility>

namespace tryst {
namespace {

std::chrono::steady_clock::time_point In(absl::Duration timeout) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
}

}  // namespace

int64_t SteadyNs() { return SteadyClock().NowNs(); }

size_t Receives::Make(Rendezvous* step, const TensorKey& key, const RecvArgs& args) {
  size_t which = 0;
  {
    MutexLock lock(&state_->mu);
    which = state_->ends.size();
    state_->ends.emplace_back();
    state_->ends.back().asked_ns = SteadyNs();
    ++state_->open;
  }
  step->RecvAsync(key, args, [state = state_, which](Received&& received) {
    const int64_t now_ns = SteadyNs();
    MutexLock lock(&state->mu);
    End& end = state->ends[which];
    if (++end.calls == 1) --state->open;
    end.status = std::move(received.status);
    end.tensor = std::move(received.tensor);
    end.is_dead = received.is_dead;
    end.ended_ns = now_ns;
    state->changed.NotifyAll();
  });
  return which;
}

bool Receives::AwaitAll(absl::Duration timeout) const {
  const auto until = In(timeout);
  MutexLock lock(&state_->mu);
  while (state_->open > 0) {
    if (state_->changed.WaitUntil(&state_->mu, until)) return state_->open == 0;
  }
  return true;
}

bool Receives::Await(size_t which, absl::Duration timeout) const {
  const auto until = In(timeout);
  MutexLock lock(&state_->mu);
  while (state_->ends[which].calls == 0) {
    if (state_->changed.WaitUntil(&state_->mu, until)) return state_->ends[which].calls != 0;
  }
  return true;
}

Receives::End Receives::at(size_t which) const {
  MutexLock lock(&state_->mu);
  return state_->ends[which];
}

size_t Receives::size() const {
  MutexLock lock(&state_->mu);
  return state_->ends.size();
}

size_t Receives::open() const {
  MutexLock lock(&state_->mu);
  return state_->open;
}

}  // namespace tryst
