#include "channel/ops/consumers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/ops/farewell.h"

namespace tryst {

namespace {

constexpr int64_t kWaitNs = 1'000'000;  // After so long a hello that waits is heard again.

}  // namespace

Consumers::Consumers(Poller* poller, TensorSource* source, const ServeSessionOptions& options,
                     uint32_t most, uint64_t seed)
    : poller_(poller), source_(source), options_(options), most_(most), next_session_(seed) {}

template <typename IsOver>
void Consumers::End(IsOver is_over, const absl::Status& why) {
  for (auto& session : serving_) {
    if (!session->closed() && !is_over(*session)) continue;
    session->Close(why);
    closing_.push_back(std::move(session));
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
}

void Consumers::NotePeer(const std::string& worker, uint64_t incarnation) {
  DropWaitingOfOthers(worker, incarnation);
  End(
      [&](const ServeSession& session) {
        return session.consumer() == worker && session.consumer_incarnation() != incarnation;
      },
      absl::AbortedError(absl::StrCat(
          worker, " has restarted: this worker drops the requests of its earlier process")));
}

void Consumers::OnHello(const Hello& hello, const ServeKind* kind, HelloDone done) {
  NotePeer(hello.worker, hello.incarnation);
  ServeSession* session = FindLiving(hello);
  if (session == nullptr) {
    if (!hello.probes && MustWait(hello, kind, "", &done)) return;
    const auto alike = std::count_if(serving_.begin(), serving_.end(), [&](const auto& one) {
      return one->probes() == hello.probes;
    });
    if (static_cast<size_t>(alike) >= most_ || closing_.size() >= most_) {
      return std::move(done)(absl::ResourceExhaustedError(absl::StrCat(
          most_,
          " consumers are connected, which is the most that max_peers allows: raise max_peers")));
    }
    if (++next_session_ == 0) ++next_session_;
    serving_.push_back(
        std::make_unique<ServeSession>(poller_, source_, options_, hello, next_session_));
    session = serving_.back().get();
  }
  session->OnHello(hello, kind, std::move(done));
}

ServeSession* Consumers::FindLiving(const Hello& hello) const {
  for (const auto& session : serving_) {
    if (session->closed() || session->consumer() != hello.worker ||
        session->probes() != hello.probes) {
      continue;
    }
    session->HearLast();
    if (!session->closed()) return session.get();
  }
  return nullptr;
}

void Consumers::OnFarewell(const Hello& hello, absl::string_view encoded, HelloDone done) {
  const auto farewell = DecodeFarewell(encoded);
  if (!farewell.ok()) return std::move(done)(farewell.status());
  NotePeer(hello.worker, hello.incarnation);
  if (ServeSession* session = FindLiving(hello)) {
    return session->OnFarewell(hello, *farewell, std::move(done));
  }
  if (MustWait(hello, nullptr, encoded, &done)) return;
  // We know nothing of that connection, so nothing is kept; but the answer shows that we are up.
  Hello answer;
  answer.worker = options_.self;
  answer.incarnation = options_.self_incarnation;
  answer.epoch = hello.epoch;
  answer.path = hello.path;
  std::move(done)(std::move(answer));
}

bool Consumers::MustWait(const Hello& hello, const ServeKind* kind, absl::string_view farewell,
                         HelloDone* done) {
  End([](const ServeSession&) { return false; }, absl::OkStatus());  // Those that are closed.
  Reap();
  if (std::all_of(closing_.begin(), closing_.end(), [&](const auto& session) {
        return session->consumer() != hello.worker || session->takes_idle();
      })) {
    return false;
  }
  TRYST_REACHED("rare: a hello waits for the takes of a session that is over");
  Waiting one{hello, kind, std::string(farewell), std::move(*done)};
  for (Waiting& earlier : waiting_) {
    if (earlier.hello.worker != hello.worker) continue;
    std::swap(earlier, one);
    std::move(one.done)(absl::AbortedError("the consumer has asked to open a newer connection"));
    return true;
  }
  waiting_.push_back(std::move(one));
  if (!wait_timer_.is_set()) {
    poller_->SetTimer(&wait_timer_, poller_->now_ns() + kWaitNs);
  }
  return true;
}

// What a process that has ended said must not end the session of the one that took its place.
void Consumers::DropWaitingOfOthers(const std::string& worker, uint64_t incarnation) {
  const auto of_another = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
    return one.hello.worker == worker && one.hello.incarnation != incarnation;
  });
  if (of_another == waiting_.end()) return;
  HelloDone done = std::move(of_another->done);
  waiting_.erase(of_another);
  std::move(done)(
      absl::AbortedError("another process of the consumer has asked to open a connection"));
}

void Consumers::HearWaiting() {
  for (Waiting& one : std::exchange(waiting_, {})) {
    if (one.kind != nullptr) {
      OnHello(one.hello, one.kind, std::move(one.done));
    } else {
      OnFarewell(one.hello, one.farewell, std::move(one.done));
    }
  }
}

void Consumers::Maintain() {
  End(
      [](const ServeSession& session) {
        if (!session.Abandoned()) return false;
        if (session.probes()) return true;
        TRYST_LOG(Warning) << session.consumer()
                           << " did not connect again in time: this worker drops its requests";
        return true;
      },
      absl::UnavailableError(
          "the consumer's connection broke, and the consumer did not connect again"));
  Reap();
}

void Consumers::Reap() {
  for (auto& session : closing_) {
    if (!session->Drained()) continue;
    const size_t keys = session->told_keys();
    session.reset();
    poller_->NoteBurstOver(keys);
  }
  closing_.erase(std::remove(closing_.begin(), closing_.end(), nullptr), closing_.end());
}

size_t Consumers::Coming() const {
  size_t count = 0;
  for (const auto& session : serving_) count += session->Coming();
  return count;
}

void Consumers::Close(const absl::Status& why) {
  for (Waiting& one : std::exchange(waiting_, {})) std::move(one.done)(why);
  End([](const ServeSession&) { return true; }, why);
}

bool Consumers::Drained() const {
  return serving_.empty() && std::all_of(closing_.begin(), closing_.end(),
                                         [](const auto& session) { return session->Drained(); });
}

void Consumers::Explain(const std::string& peer, std::string* out) const {
  for (const auto& session : serving_) {
    if (peer.empty() || session->consumer() == peer) {
      absl::StrAppend(out, session->Explain(), "\n");
    }
  }
}

void Consumers::View(const std::string& peer, std::vector<PathView>* views) const {
  for (const auto& session : serving_) {
    if (!session->closed() && (peer.empty() || session->consumer() == peer)) {
      views->push_back(session->View());
    }
  }
}

void Consumers::ListOps(LiveOps* ops) const {
  for (const auto& session : serving_) session->ListOps(ops);
  for (const auto& session : closing_) session->ListOps(ops);
}

}  // namespace tryst
