#ifndef TRYST_SERVER_MEMBERSHIP_H_
#define TRYST_SERVER_MEMBERSHIP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/mutex.h"
#include "channel/grpc/peer_directory.h"
#include "server/member.h"

namespace tryst {

// The members of the cluster and their addresses at this moment. Thread-safe.
class Membership final : public PeerDirectory {
 public:
  using Connect = std::function<std::shared_ptr<grpc::Channel>(const std::string& worker,
                                                               const std::string& address)>;

  // Why a worker cannot be reached at its address, as far as is known; empty: not known.
  using Why = std::function<std::string(const std::string& worker, const std::string& address)>;

  // An open cluster waits for workers that it does not know; a closed one refuses them.
  Membership(bool open, Connect connect, Why why = nullptr)
      : open_(open), connect_(std::move(connect)), why_(std::move(why)) {}

  // Unknown workers may still be added although the cluster is closed, so a fetch from one waits.
  // Call it before another thread has this object.
  void ExpectMore() { expects_more_ = true; }
  bool expects_more() const { return open_ || expects_more_; }
  bool open() const { return open_; }

  // The configuration says so. Keeps what the worker has said of itself since. True if
  // anything changed.
  bool Set(const std::string& worker, const std::string& address);
  // The configuration does not name it any more.
  void Remove(const std::string& worker);
  // The worker says so itself. kPermissionDenied: not one of this closed cluster.
  absl::Status Announce(const Member& member);
  // Another member says so: believed of a worker that is not known yet. True if it is new.
  bool Hear(const Member& member);
  // As far as `incarnation` knows; a later life is not affected.
  void Leave(const std::string& worker, uint64_t incarnation);

  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view peer) override;
  absl::Status Explain(absl::string_view peer, absl::Status status) override;
  // Lets go of the channels that were not asked for since the last time, unless somebody
  // uses them. Not on a thread of gRPC's.
  void DropIdleChannels();
  // True for any worker of an open cluster.
  bool Admits(absl::string_view worker) const;
  // Those whose names come behind `after`, in their order; at most so many.
  std::vector<Member> Members(absl::string_view after = "", size_t most = SIZE_MAX) const;
  absl::optional<Member> Find(absl::string_view worker) const;
  // The last 256, the oldest first.
  std::vector<MemberChange> Changes() const;
  // How often workers were seen to come back as another incarnation.
  int64_t restarts() const;

 private:
  struct State {
    std::string configured;  // Address.
    Member member;
    std::shared_ptr<grpc::Channel> channel;
    bool asked = false;             // For the channel, since DropIdleChannels().
    uint64_t incarnation_last = 0;  // Also of a worker that has left.
  };

  // True: there is room for another, perhaps because one was forgotten that has left.
  bool MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddChange(const std::string& worker, std::string what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const bool open_;
  bool expects_more_ = false;
  const Connect connect_;
  const Why why_;
  mutable Mutex mu_;
  std::map<std::string, State, std::less<>> members_ ABSL_GUARDED_BY(mu_);
  std::deque<MemberChange> changes_ ABSL_GUARDED_BY(mu_);
  int64_t restarts_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERSHIP_H_
