#include "server/members/membership.h"

#include <grpcpp/channel.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "channel/signing/caller.h"
#include "rendezvous/tensor_key.h"

namespace tryst {
namespace {

constexpr size_t kMaxMembers = 16384;  // The most members of an open cluster.
constexpr size_t kMaxWorkerBytes = 256;
constexpr size_t kMaxAddressBytes = 256;
constexpr size_t kMaxChanges = 256;

absl::Status CheckWorker(absl::string_view worker) {
  DeviceName name;
  if (worker.size() > kMaxWorkerBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a worker's name of ", worker.size(),
                                                   " bytes is too long: it may have at most ",
                                                   kMaxWorkerBytes));
  }
  if (!ParseDeviceName(absl::StrCat(worker, "/device:CPU:0"), &name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", worker, "' is not a worker's name (/job:J/replica:R/task:T)"));
  }
  return absl::OkStatus();
}

}  // namespace

bool Membership::Set(const std::string& worker, const std::string& address) {
  MutexLock lock(&mu_);
  State& state = members_[worker];
  if (state.configured == address) return false;
  state.configured = address;
  state.member.worker = worker;
  state.member.address = address;
  state.channel = nullptr;
  return true;
}

void Membership::Remove(const std::string& worker) {
  MutexLock lock(&mu_);
  members_.erase(worker);
}

absl::Status Membership::Announce(const Member& member) {
  absl::Status valid = CheckWorker(member.worker);
  if (!valid.ok()) return valid;
  if (member.address.size() > kMaxAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address of ", member.worker, " has ", member.address.size(),
                     " bytes, and may have at most ", kMaxAddressBytes));
  }
  bool moved = false;
  std::string address;
  {
    MutexLock lock(&mu_);
    auto it = members_.find(member.worker);
    if (it == members_.end()) {
      if (!open_) {
        return absl::PermissionDeniedError(
            absl::StrCat(member.worker,
                         " is not of this cluster, which is closed: add it to the cluster's "
                         "description, or set open_cluster"));
      }
      if (!MakeRoom())
        return absl::ResourceExhaustedError(absl::StrCat(
            member.worker, " cannot join: this worker knows ", kMaxMembers, " members at most"));
      it = members_.emplace(member.worker, State()).first;
    }
    State& state = it->second;
    moved = state.member.incarnation != member.incarnation ||
            (!member.address.empty() && state.member.address != member.address);
    if (!member.address.empty() && state.member.address != member.address) {
      state.channel = nullptr;
      state.member.address = member.address;
    }
    state.member.worker = member.worker;
    if (member.incarnation != 0 && member.incarnation != state.incarnation_last) {
      const bool restarted = state.incarnation_last != 0;
      restarts_ += restarted;
      AddChange(member.worker,
                restarted ? absl::StrFormat("restarted: incarnation %016x became %016x, at %s",
                                            state.incarnation_last, member.incarnation,
                                            state.member.address)
                          : absl::StrFormat("joined: incarnation %016x, at %s", member.incarnation,
                                            state.member.address));
      state.incarnation_last = member.incarnation;
    } else if (moved && state.incarnation_last != 0) {
      AddChange(member.worker, absl::StrCat("is at ", state.member.address));
    }
    state.member.incarnation = member.incarnation;
    address = state.member.address;
  }
  if (moved) {
    TRYST_LOG(Info) << "member " << member.worker << " is at " << address << ", incarnation "
                    << absl::StrFormat("%016x", member.incarnation);
  }
  return absl::OkStatus();
}

bool Membership::Hear(const Member& member) {
  if (!open_ || member.address.empty()) return false;
  {
    MutexLock lock(&mu_);
    auto it = members_.find(member.worker);
    if (it != members_.end() && !it->second.member.address.empty()) return false;
  }
  return Announce({member.worker, member.address, 0}).ok();
}

void Membership::OnGreet(GreetFn greet) {
  MutexLock lock(&mu_);
  greet_ = std::move(greet);
}

void Membership::Greet(const std::string& worker, HeartbeatWord word) {
  GreetFn greet;
  {
    MutexLock lock(&mu_);
    greet = greet_;
  }
  if (open_ && greet) greet(worker, word);
}

void Membership::NoteIncarnation(absl::string_view peer, uint64_t incarnation) {
  {
    MutexLock lock(&mu_);
    const auto it = members_.find(peer);
    if (it == members_.end()) return;
    it->second.unanswered = 0;
    if (!open_ || incarnation == 0 || it->second.member.incarnation == incarnation) return;
  }
  Greet(std::string(peer), HeartbeatWord::kStillHere);
}

void Membership::Leave(const std::string& worker, uint64_t incarnation) {
  MutexLock lock(&mu_);
  auto it = members_.find(worker);
  if (it == members_.end() || it->second.member.incarnation != incarnation) return;
  State& state = it->second;
  state.channel = nullptr;
  AddChange(worker, "left");
  state.member.incarnation = 0;
  // A configured worker is expected at its configured address, unless it announces another.
  state.member.address = state.configured;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Membership::ChannelTo(absl::string_view peer) {
  std::string address;
  {
    MutexLock lock(&mu_);
    auto it = members_.find(peer);
    if (it == members_.end()) {
      if (expects_more()) {
        return absl::UnavailableError(
            absl::StrCat(peer, " has not joined the cluster yet: no worker has said where it is"));
      }
      std::string known;
      for (const auto& [worker, state] : members_) absl::StrAppend(&known, " ", worker);
      return absl::NotFoundError(
          absl::StrCat("the cluster's description names no worker ", peer, "; it names:", known));
    }
    it->second.asked = true;
    if (it->second.channel != nullptr) return it->second.channel;
    address = it->second.member.address;
  }
  if (address.empty())
    return absl::UnavailableError(absl::StrCat(
        peer, " has left the cluster (it stopped, or was removed from the description)"));
  std::shared_ptr<grpc::Channel> channel = connect_(std::string(peer), address);
  MutexLock lock(&mu_);
  auto it = members_.find(peer);
  if (it == members_.end())
    return absl::UnavailableError(absl::StrCat(peer, " has left the cluster"));
  // Keep the first channel: another thread may have stored one, or the peer may have moved.
  if (it->second.channel == nullptr && it->second.member.address == address) {
    it->second.channel = channel;
  }
  return it->second.channel != nullptr ? it->second.channel : channel;
}

absl::Status Membership::Explain(absl::string_view peer, absl::Status status) {
  if (why_ == nullptr || !(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))) {
    return status;
  }
  std::string address;
  {
    MutexLock lock(&mu_);
    const auto it = members_.find(peer);
    if (it != members_.end()) address = it->second.member.address;
  }
  const std::string why = why_(std::string(peer), address);
  if (why.empty()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("cannot reach ", peer, ": ", why, " [", status.message(), "]"));
}

void Membership::NoteNoAnswer(absl::string_view peer) {
  constexpr int kMostUnanswered = 2;
  std::shared_ptr<grpc::Channel> dropped;  // Destroyed after the lock is released.
  MutexLock lock(&mu_);
  const auto it = members_.find(peer);
  if (it == members_.end() || it->second.channel == nullptr) return;
  State& state = it->second;
  if (++state.unanswered < kMostUnanswered) return;
  state.unanswered = 0;
  // gRPC itself goes on trying to connect.
  if (state.channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) return;
  dropped = std::exchange(state.channel, nullptr);
}

void Membership::RenewChannels() {
  std::vector<std::shared_ptr<grpc::Channel>> dropped;  // Destroyed after the lock is released.
  MutexLock lock(&mu_);
  for (auto& [worker, state] : members_) dropped.push_back(std::move(state.channel));
}

void Membership::DropIdleChannels() {
  // They are destroyed after the lock is released.
  std::vector<std::shared_ptr<grpc::Channel>> dropped;
  MutexLock lock(&mu_);
  for (auto& [worker, state] : members_) {
    // A channel is handed out under the lock only, so its count cannot grow here.
    if (!state.asked && state.channel.use_count() == 1) dropped.push_back(std::move(state.channel));
    state.asked = false;
  }
}

bool Membership::Admits(absl::string_view worker) const {
  if (open_) return CheckWorker(worker).ok();
  MutexLock lock(&mu_);
  return members_.find(worker) != members_.end();
}

bool Membership::MakeRoom() {
  if (members_.size() < kMaxMembers) return true;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    const State& state = it->second;
    if (state.configured.empty() && state.member.address.empty() && state.channel == nullptr) {
      members_.erase(it);
      return true;
    }
  }
  return false;
}

void Membership::AddChange(const std::string& worker, std::string what) {
  if (changes_.size() == kMaxChanges) changes_.pop_front();
  changes_.push_back({UnixMs(), worker, std::move(what)});
}

std::vector<MemberChange> Membership::Changes() const {
  MutexLock lock(&mu_);
  return {changes_.begin(), changes_.end()};
}

int64_t Membership::restarts() const {
  MutexLock lock(&mu_);
  return restarts_;
}

absl::optional<Member> Membership::Find(absl::string_view worker) const {
  MutexLock lock(&mu_);
  const auto it = members_.find(worker);
  if (it == members_.end()) return absl::nullopt;
  return it->second.member;
}

std::vector<Member> Membership::Members(absl::string_view after, size_t most) const {
  std::vector<Member> out;
  MutexLock lock(&mu_);
  auto it = after.empty() ? members_.begin() : members_.upper_bound(after);
  for (; it != members_.end() && out.size() < most; ++it) out.push_back(it->second.member);
  return out;
}

}  // namespace tryst
