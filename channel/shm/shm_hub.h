#ifndef TRYST_CHANNEL_SHM_SHM_HUB_H_
#define TRYST_CHANNEL_SHM_SHM_HUB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/crew.h"
#include "channel/arena/arena.h"
#include "channel/poller/poller.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/same_host.h"
#include "channel/shm/wire.h"

namespace tryst {

// What a poller polls for shared memory: the rings of all links, and one epoll for their sockets
// and for the door, the socket to which consumers connect. Rings are read in every turn. Sockets
// are read only every kSocketsNs, because nothing on them is urgent while we are awake, and after a
// sleep that no link's peer has ended. What is left on them ends the next sleep at once. Poller
// thread only.
class ShmHub final : private PollerSource, private PollerTimer {
 public:
  // Owns a socket that has something to read, or has ended.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void OnSocket() = 0;
  };
  // An open link. In PollLink() it may add or remove no link but itself.
  class Link {
   public:
    virtual ~Link() = default;
    virtual bool PollLink() = 0;     // True: there was work.
    virtual bool Ready() const = 0;  // Whether a message has come.
    virtual void FallAsleep() = 0;
    // True: the peer saw it asleep, so its wake-up packet has been read or will come.
    virtual bool WakeUp() = 0;
  };
  // The user to which an invited consumer is handed.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void OnGuest(std::unique_ptr<LocalSocket> socket) = 0;
  };

  // `arena` may be shared with whatever allocates tensors, `crew` with other pollers. kUnavailable:
  // no socket could be made.
  static absl::StatusOr<std::unique_ptr<ShmHub>> Create(Poller* poller,
                                                        std::shared_ptr<Arena> arena,
                                                        std::shared_ptr<Crew> crew);
  ~ShmHub() override;  // REQUIRES: it is detached.
  void Attach() { poller_->AddSource(this); }
  void Detach() {
    poller_->CancelTimer(this);
    poller_->RemoveSource(this);
  }

  // A name and a token by which one consumer can connect to `host`, within kInvitationNs.
  // kResourceExhausted: too many were invited and did not come.
  absl::StatusOr<shm_wire::Invitation> Invite(Host* host);
  void Disinvite(Host* host);

  // kUnavailable: the kernel watches no more for this user.
  absl::Status Watch(int fd, Watcher* watcher);
  void Unwatch(int fd);
  void AddLink(Link* link);
  void RemoveLink(Link* link);
  // For tests: what the kernel does when a process ends, to all of its sockets.
  void EndSockets();
  // Readable when a socket has something for us.
  int event_fd() const override { return epoll_.get(); }

  Poller* poller() const { return poller_; }
  Arena* arena() const { return arena_.get(); }
  Crew* crew() { return crew_.get(); }
  const HostIdentity& host() const { return host_; }

 private:
  static constexpr int64_t kSocketsNs = 100'000;
  static constexpr int64_t kSocketsWokenNs = 1'000'000;  // However often peers wake us.
  static constexpr int64_t kInvitationNs = 10'000'000'000;
  static constexpr size_t kMaxInvited = 1024;
  static constexpr size_t kMaxKnocking = 64;
  // Every process of this host can connect, and each connection costs us system calls, invited or
  // not. So few are accepted in one look, and once most of them have been strangers, the door is
  // looked at less often.
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

  ShmHub(Poller* poller, std::shared_ptr<Arena> arena, std::shared_ptr<Crew> crew);
  bool Poll() override;
  void OnTimer() override { OpenDoor(); }
  Sight Glance() override;
  void Arm() override;
  bool CheckSockets();
  bool WakeLinks();  // True: a peer has woken one of them.
  void OnDoor();
  bool MayKnock(const LocalSocket& socket) const;
  void PauseDoor();
  void OpenDoor();
  void OnKnock(Knocking* knocking);

  // Constant after construction.
  Poller* const poller_;
  const std::shared_ptr<Arena> arena_;
  const std::shared_ptr<Crew> crew_;
  const HostIdentity host_;
  std::string name_;
  std::unique_ptr<LocalSocket> door_socket_;
  OwnedFd epoll_;

  Door door_;
  std::vector<Invited> invited_;
  std::vector<std::unique_ptr<Knocking>> knocking_;
  int64_t door_pause_ns_ = 0;                    // The last pause; 0: none is needed.
  int64_t door_opens_ns_ = 0;                    // 0: it is open.
  absl::flat_hash_map<int, Watcher*> watchers_;  // By descriptor.
  std::vector<Link*> links_;                     // Null: it was removed in this turn.
  Arming arming_ = Arming::kAwake;
  int64_t sockets_checked_ns_ = 0;
};

// Fills `bytes` with what nobody can guess.
void FillSecret(void* to, size_t bytes);

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SHM_HUB_H_
