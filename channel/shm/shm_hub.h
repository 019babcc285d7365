#ifndef TRYST_CHANNEL_SHM_SHM_HUB_H_
#define TRYST_CHANNEL_SHM_SHM_HUB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "channel/arena/arena.h"
#include "channel/poller/poller.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/same_host.h"
#include "channel/shm/stream_copy.h"
#include "channel/shm/wire.h"

namespace tryst {

// What a poller looks at for shared memory: the rings of all links, and one epoll for their
// sockets and for the socket that consumers knock at. Rings are read in every turn; sockets
// only every kSocketsNs, since nothing on them is urgent while we are awake, and after a sleep
// that no link's peer has ended. What is left on them ends the next sleep as it begins.
// Poller thread only.
class ShmHub final : private PollerSource, private PollerTimer {
 public:
  // A socket that has something to read, or has ended.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void OnSocket() = 0;
  };
  // An open link. Neither adds nor removes links in PollLink() but its own.
  class Link {
   public:
    virtual ~Link() = default;
    virtual bool PollLink() = 0;     // True if there was work.
    virtual bool Ready() const = 0;  // Whether a message has come.
    virtual void FallAsleep() = 0;
    // True if the peer had seen it asleep: what it said to wake us has been read, or is to come.
    virtual bool WakeUp() = 0;
  };
  // Whom a guest has been promised to.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void OnGuest(std::unique_ptr<LocalSocket> socket) = 0;
  };

  // `arena` may be shared with whoever allocates tensors. kUnavailable: no socket.
  static absl::StatusOr<std::unique_ptr<ShmHub>> Create(Poller* poller,
                                                        std::shared_ptr<Arena> arena,
                                                        int copy_helpers);
  ~ShmHub() override;  // REQUIRES: detached.
  void Attach() { poller_->AddSource(this); }
  void Detach() {
    poller_->CancelTimer(this);
    poller_->RemoveSource(this);
  }

  // A name and a token that lets one consumer in to `host`, for kInvitationNs.
  // kResourceExhausted: too many have been invited and did not come.
  absl::StatusOr<shm_wire::Invitation> Invite(Host* host);
  void Disinvite(Host* host);

  void Watch(int fd, Watcher* watcher);
  void Unwatch(int fd);
  void AddLink(Link* link);
  void RemoveLink(Link* link);

  Poller* poller() const { return poller_; }
  Arena* arena() const { return arena_.get(); }
  CopyCrew* crew() { return &crew_; }
  const HostIdentity& host() const { return host_; }

 private:
  static constexpr int64_t kSocketsNs = 100'000;
  static constexpr int64_t kSocketsWokenNs = 1'000'000;  // However often peers wake us.
  static constexpr int64_t kInvitationNs = 10'000'000'000;
  static constexpr size_t kMaxInvited = 1024;
  static constexpr size_t kMaxKnocking = 64;
  // Whoever of this host connects costs us system calls, invited or not: so many a look, and a
  // look at the door at most so often once most of them have been strangers.
  static constexpr int kAcceptsPerLook = 4;
  static constexpr int64_t kDoorPauseNs = 2'000'000;
  static constexpr int64_t kDoorLongestPauseNs = 64'000'000;

  struct Invited {
    shm_wire::Token token;
    Host* host;
    int64_t until_ns;
  };
  // A connection that has not shown its token yet.
  struct Knocking final : Watcher {
    void OnSocket() override { hub->OnKnock(this); }
    ShmHub* hub = nullptr;
    std::unique_ptr<LocalSocket> socket;
  };
  struct Door final : Watcher {
    void OnSocket() override { hub->OnDoor(); }
    ShmHub* hub = nullptr;
  };
  enum class Arming { kAwake, kArmed, kAsleep };

  ShmHub(Poller* poller, std::shared_ptr<Arena> arena, int copy_helpers);
  bool Poll() override;
  void OnTimer() override { OpenDoor(); }
  Sight Glance() override;
  void Arm() override;
  int event_fd() const override { return epoll_.get(); }
  bool CheckSockets();
  bool WakeLinks();  // True if a peer has woken one of them.
  void OnDoor();
  bool MayKnock(const LocalSocket& socket) const;
  void PauseDoor();
  void OpenDoor();
  void OnKnock(Knocking* knocking);

  // Constant after construction.
  Poller* const poller_;
  const std::shared_ptr<Arena> arena_;
  const HostIdentity host_;
  std::string name_;
  std::unique_ptr<LocalSocket> door_socket_;
  OwnedFd epoll_;

  CopyCrew crew_;
  Door door_;
  std::vector<Invited> invited_;
  std::vector<std::unique_ptr<Knocking>> knocking_;
  int64_t door_pause_ns_ = 0;                    // The last one; 0: there is no need of any.
  int64_t door_opens_ns_ = 0;                    // 0: it is open.
  absl::flat_hash_map<int, Watcher*> watchers_;  // By descriptor.
  std::vector<Link*> links_;                     // Null: removed in this turn.
  Arming arming_ = Arming::kAwake;
  int64_t sockets_checked_ns_ = 0;
};

// Fills `bytes` with what nobody can guess.
void FillSecret(void* to, size_t bytes);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SHM_HUB_H_
