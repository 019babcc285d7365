#ifndef TRYST_SERVER_MEMBERS_MEMBERSHIP_H_
#define TRYST_SERVER_MEMBERS_MEMBERSHIP_H_

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
#include "server/members/member.h"

namespace tryst {

// The current members of the cluster and their addresses. Thread-safe.
class Membership final : public PeerDirectory {
 public:
  using Connect = std::function<std::shared_ptr<grpc::Channel>(const std::string& worker,
                                                               const std::string& address)>;

  // Says why a worker cannot be reached at its address. Empty: no reason is known.
  using Why = std::function<std::string(const std::string& worker, const std::string& address)>;

  // In an open cluster a fetch from an unknown worker waits for it; in a closed one it fails.
  Membership(bool open, Connect connect, Why why = nullptr)
      : open_(open), connect_(std::move(connect)), why_(std::move(why)) {}

  // A closed cluster may still get more workers (from etcd or a file), so a fetch from an unknown
  // one waits. Call it before another thread has this object.
  void ExpectMore() { expects_more_ = true; }
  bool expects_more() const { return open_ || expects_more_; }
  bool open() const { return open_; }

  // The configuration names this worker. Keeps what the worker has announced since. True: something
  // changed.
  bool Set(const std::string& worker, const std::string& address);
  // The configuration no longer names this worker.
  void Remove(const std::string& worker);
  // The worker announces itself. kPermissionDenied: it is not a member of this closed cluster.
  absl::Status Announce(const Member& member);
  // Another member tells of a worker. It is believed only about workers that are not known yet.
  // True: it was new.
  bool Hear(const Member& member);
  // Has a worker told our word, by what an Announcer sets by OnGreet().
  void Greet(const std::string& worker, HeartbeatWord word);
  using GreetFn = std::function<void(const std::string& worker, HeartbeatWord word)>;
  void OnGreet(GreetFn greet);
  // The worker leaves. A later incarnation than `incarnation` is not affected.
  void Leave(const std::string& worker, uint64_t incarnation);

  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(absl::string_view peer) override;
  absl::Status Explain(absl::string_view peer, absl::Status status) override;
  // In an open cluster, greets a member that is in another incarnation than we know: it may have
  // forgotten us, and everybody.
  void NoteIncarnation(absl::string_view peer, uint64_t incarnation) override;
  // The second time that nobody answers over one connection, the next ChannelTo() makes another:
  // bytes that were changed or lost in a connection's middle can leave one end waiting for the rest
  // of a frame for ever, and whatever comes then counts as a sign of life to gRPC.
  void NoteNoAnswer(absl::string_view peer) override;
  // The next ChannelTo() each member makes another: our certificates have changed. What goes on
  // over the former ones goes on.
  void RenewChannels();
  // Drops the channels that nobody has asked for since the last call and nobody uses now. Do not
  // call it on a gRPC thread.
  void DropIdleChannels();
  // Always true in an open cluster.
  bool Admits(absl::string_view worker) const;
  // The members whose names sort after `after`, in order, at most `most`.
  std::vector<Member> Members(absl::string_view after = "", size_t most = SIZE_MAX) const;
  absl::optional<Member> Find(absl::string_view worker) const;
  // The last 256 events, oldest first.
  std::vector<MemberChange> Changes() const;
  // How often a worker came back as another incarnation.
  int64_t restarts() const;

 private:
  struct State {
    std::string configured;  // The configured address.
    Member member;
    std::shared_ptr<grpc::Channel> channel;
    // Whether the channel was asked for since the last DropIdleChannels().
    bool asked = false;
    uint64_t incarnation_last = 0;  // Kept also after the worker has left.
    int unanswered = 0;             // Calls in a row over `channel`.
  };

  // True: there is room for one more member. May forget one that has left.
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
  GreetFn greet_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_MEMBERS_MEMBERSHIP_H_
