#include "server/weights/parked_asks.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {

void EndAsk(AskOfPeer ask, absl::StatusOr<Tensor> answer) {
  Received received;
  received.status = answer.status();
  if (answer.ok()) received.tensor = *std::move(answer);
  EndReceive(ask.args.executor, std::move(received), std::move(ask.done));
}

void ParkedAsks::Forget(const std::string& peer) {
  const auto found = of_peer_.find(peer);
  if (--found->second == 0) of_peer_.erase(found);
}

bool ParkedAsks::TakeOut(uint64_t id, AskOfPeer* ask) {
  MutexLock lock(&mu_);
  const auto found = parked_.find(id);
  if (found == parked_.end()) return false;
  *ask = std::move(found->second.ask);
  parked_.erase(found);
  Forget(ask->peer);
  return true;
}

void ParkedAsks::Park(AskOfPeer ask) {
  const CancellationRef cancellation = ask.args.cancellation;
  const std::string peer = ask.peer;
  uint64_t id = 0;
  absl::Status full;
  {
    MutexLock lock(&mu_);
    size_t& of_peer = of_peer_[peer];
    if (parked_.size() >= most_ || of_peer >= most_of_one_) {
      full = absl::ResourceExhaustedError(absl::StrCat(
          "too many requests wait at this owner: ", of_peer, " of ", peer, ", of which ",
          most_of_one_, " may, and ", parked_.size(), " in all, of which ", most_, " may"));
      if (of_peer == 0) of_peer_.erase(peer);
    } else {
      id = ++last_;
      ++of_peer;
      parked_[id].ask = std::move(ask);
    }
  }
  if (!full.ok()) return EndAsk(std::move(ask), std::move(full));
  if (cancellation == nullptr) return;
  const Cancellation::Token token = cancellation->Register([weak = weak_from_this(), id] {
    const auto self = weak.lock();
    AskOfPeer cancelled;
    if (self == nullptr || !self->TakeOut(id, &cancelled)) return;
    EndAsk(std::move(cancelled), absl::CancelledError("the asker cancelled its request"));
  });
  AskOfPeer cancelled;
  if (token == Cancellation::kNoToken) {  // It was cancelled before.
    if (TakeOut(id, &cancelled))
      EndAsk(std::move(cancelled), absl::CancelledError("the asker cancelled its request"));
    return;
  }
  {
    MutexLock lock(&mu_);
    const auto found = parked_.find(id);
    if (found != parked_.end()) {
      found->second.token = token;
      return;
    }
  }
  cancellation->TryDeregister(token);  // It was answered meanwhile.
}

std::vector<AskOfPeer> ParkedAsks::TakeIf(absl::FunctionRef<bool(const AskOfPeer&)> wanted) {
  std::vector<Parked> taken;
  {
    MutexLock lock(&mu_);
    for (auto parked = parked_.begin(); parked != parked_.end();) {
      if (!wanted(parked->second.ask)) {
        ++parked;
        continue;
      }
      Forget(parked->second.ask.peer);
      taken.push_back(std::move(parked->second));
      parked = parked_.erase(parked);
    }
  }
  std::vector<AskOfPeer> asks;
  for (Parked& one : taken) {
    if (one.token != Cancellation::kNoToken) one.ask.args.cancellation->TryDeregister(one.token);
    asks.push_back(std::move(one.ask));
  }
  return asks;
}

size_t ParkedAsks::size() const {
  MutexLock lock(&mu_);
  return parked_.size();
}

}  // namespace tryst
