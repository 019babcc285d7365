#include "rendezvous/fetch_group.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "rendezvous/span_digests.h"

namespace tryst {

struct FetchGroup::State {
  explicit State(const Clock* clock) : clock(clock) {}

  using Fenced = absl::AnyInvocable<void(const FenceReport&) &&>;
  // Reports to all who wait, if the last receive has ended after a cancel.
  void ReportIfFenced() {
    std::vector<Fenced> waiting;
    FenceReport last;
    {
      MutexLock lock(&mu);
      if (!cancelled || under_way > 0) return;
      if (!fenced) report.waited_ns = clock->NowNs() - cancelled_ns;
      fenced = true;
      waiting.swap(fences);
      last = report;
    }
    for (Fenced& one : waiting) std::move(one)(last);
  }

  const Clock* const clock;
  Cancellation cancellation;
  mutable Mutex mu;
  size_t under_way ABSL_GUARDED_BY(mu) = 0;
  bool cancelled ABSL_GUARDED_BY(mu) = false;
  bool fenced ABSL_GUARDED_BY(mu) = false;
  int64_t cancelled_ns ABSL_GUARDED_BY(mu) = 0;
  FenceReport report ABSL_GUARDED_BY(mu);
  std::vector<Fenced> fences ABSL_GUARDED_BY(mu);
};

// A receive of the group. Callbacks of cancellations, and the receive, keep it.
struct FetchGroup::Member {
  Member(std::shared_ptr<State> group, absl::string_view peer, uint64_t bytes)
      : group(std::move(group)), peer(peer), bytes(bytes) {}

  // Its `done` has run. A callback that runs meanwhile finds nothing to cancel.
  void Leave() {
    if (of_group != Cancellation::kNoToken) group->cancellation.TryDeregister(of_group);
    if (of_caller != Cancellation::kNoToken) caller->TryDeregister(of_caller);
    {
      MutexLock lock(&group->mu);
      --group->under_way;
      if (group->cancelled) group->report.slowest_peer = peer;
    }
    group->ReportIfFenced();
  }
  void Count(const Received& received) {
    MutexLock lock(&group->mu);
    FenceReport& report = group->report;
    if (received.status.ok()) {
      ++report.ended_ok;
      if (!received.is_dead) {
        report.bytes_landed += bytes == kBytesOfTensor ? received.tensor.bytes() : bytes;
      }
    } else {
      ++(absl::IsCancelled(received.status) ? report.cancelled : report.failed);
    }
  }

  const std::shared_ptr<State> group;
  const std::string peer;
  const uint64_t bytes;
  Cancellation own;
  CancellationRef caller;
  // Written before the receive starts.
  Cancellation::Token of_group = Cancellation::kNoToken;
  Cancellation::Token of_caller = Cancellation::kNoToken;
};

FetchGroup::FetchGroup(const Clock* clock) : state_(std::make_shared<State>(clock)) {}

FetchGroup::~FetchGroup() { StartCancel(nullptr); }

size_t FetchGroup::under_way() const {
  MutexLock lock(&state_->mu);
  return state_->under_way;
}

void FetchGroup::Start(absl::string_view peer, uint64_t bytes, const RecvArgs& args, DoneFn done,
                       absl::FunctionRef<void(const RecvArgs& args, DoneFn done)> start) {
  if (!done) done = [](Received&&) {};
  bool joins;
  {
    MutexLock lock(&state_->mu);
    joins = !state_->cancelled;
    if (joins) ++state_->under_way;
  }
  if (!joins) {
    return FailReceive(absl::CancelledError("the group of this receive was cancelled"),
                       args.executor, std::move(done));
  }
  const auto member = std::make_shared<Member>(state_, peer, bytes);
  member->of_group = state_->cancellation.Register([member] { member->own.StartCancel(); });
  if (member->of_group == Cancellation::kNoToken) member->own.StartCancel();
  if (args.cancellation != nullptr) {
    member->caller = args.cancellation;
    member->of_caller = member->caller->Register([member] { member->own.StartCancel(); });
    if (member->of_caller == Cancellation::kNoToken) member->own.StartCancel();
  }
  RecvArgs own = args;
  own.cancellation = &member->own;
  start(own, [member, done = std::move(done)](Received&& received) mutable {
    // Also where `done` throws.
    struct Leaves {
      ~Leaves() { member->Leave(); }
      Member* const member;
    } leaves{member.get()};
    member->Count(received);
    DoneFn ends = std::move(done);
    std::move(ends)(std::move(received));
  });
}

void FetchGroup::RecvAsync(Rendezvous* step, const TensorKey& key, const RecvArgs& args,
                           DoneFn done) {
  Start(key.empty() ? "" : key.src().worker, kBytesOfTensor, args, std::move(done),
        [&](const RecvArgs& own, DoneFn ends) { step->RecvAsync(key, own, std::move(ends)); });
}

void FetchGroup::RecvSelectedAsync(Rendezvous* step, const TensorKey& key, const RecvArgs& args,
                                   const SelectedLanding& landing, DoneFn done) {
  // Whether it fits is checked when it is started. A whole landing has the bytes of its tensor.
  const auto bytes = CheckSelection(landing.selection, kBytesOfTensor, SelectionUse::kRead);
  if (bytes.ok()) NoneIsThere(landing);
  Start(key.empty() ? "" : key.src().worker, bytes.value_or(0), args, std::move(done),
        [&](const RecvArgs& own, DoneFn ends) {
          step->RecvSelectedAsync(key, own, landing, std::move(ends));
        });
}

void FetchGroup::StartCancel(absl::AnyInvocable<void(const FenceReport&) &&> fenced) {
  const std::shared_ptr<State> state = state_;  // A callback may destroy the group.
  {
    MutexLock lock(&state->mu);
    if (!state->cancelled) state->cancelled_ns = state->clock->NowNs();
    state->cancelled = true;
    if (fenced) state->fences.push_back(std::move(fenced));
  }
  state->cancellation.StartCancel();
  state->ReportIfFenced();
}

}  // namespace tryst
