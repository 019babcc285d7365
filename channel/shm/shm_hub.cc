#include "channel/shm/shm_hub.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

void FillSecret(void* to, size_t bytes) {
  TRYST_CHECK(getrandom(to, bytes, 0) == static_cast<ssize_t>(bytes));
}

ShmHub::ShmHub(Poller* poller, std::shared_ptr<Arena> arena, std::shared_ptr<Crew> crew)
    : poller_(poller),
      arena_(std::move(arena)),
      crew_(std::move(crew)),
      host_(OwnHost()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  door_.hub = this;
}

absl::StatusOr<std::unique_ptr<ShmHub>> ShmHub::Create(Poller* poller, std::shared_ptr<Arena> arena,
                                                       std::shared_ptr<Crew> crew) {
  std::unique_ptr<ShmHub> hub(new ShmHub(poller, std::move(arena), std::move(crew)));
  if (!hub->epoll_.valid())
    return absl::UnavailableError(
        "the process has no file descriptor left for shared memory: raise the limit of open files "
        "(ulimit -n)");
  char random[16];
  FillSecret(random, sizeof(random));
  hub->name_ =
      absl::StrCat("tryst-", absl::BytesToHexString(absl::string_view(random, sizeof(random))));
  auto socket = LocalSocket::Listen(hub->name_);
  if (!socket.ok()) return socket.status();
  hub->door_socket_ = *std::move(socket);
  const absl::Status watched = hub->Watch(hub->door_socket_->fd(), &hub->door_);
  if (!watched.ok()) return watched;
  return hub;
}

ShmHub::~ShmHub() {
  for (const Link* link : links_) TRYST_CHECK(link == nullptr) << "a link is left on the hub";
}

absl::StatusOr<shm_wire::Invitation> ShmHub::Invite(Host* host) {
  const int64_t now_ns = poller_->now_ns();
  invited_.erase(std::remove_if(invited_.begin(), invited_.end(),
                                [&](const Invited& one) { return one.until_ns <= now_ns; }),
                 invited_.end());
  if (invited_.size() >= kMaxInvited) {
    return absl::ResourceExhaustedError(
        "too many consumers have asked for shared memory and not connected yet: try again later");
  }
  shm_wire::Invitation invitation;
  invitation.socket = name_;
  FillSecret(invitation.token.data(), invitation.token.size());
  invited_.push_back({invitation.token, host, now_ns + kInvitationNs});
  return invitation;
}

void ShmHub::Disinvite(Host* host) {
  invited_.erase(std::remove_if(invited_.begin(), invited_.end(),
                                [&](const Invited& one) { return one.host == host; }),
                 invited_.end());
}

absl::Status ShmHub::Watch(int fd, Watcher* watcher) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "the kernel watches no further local socket for shared memory: ", strerror(errno),
        " (raise fs.epoll.max_user_watches)"));
  }
  watchers_[fd] = watcher;
  return absl::OkStatus();
}

void ShmHub::Unwatch(int fd) {
  if (watchers_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void ShmHub::AddLink(Link* link) { links_.push_back(link); }

// Poll() may be going through the list, so the entry only becomes null; Poll() closes the gap.
void ShmHub::RemoveLink(Link* link) {
  std::replace(links_.begin(), links_.end(), link, static_cast<Link*>(nullptr));
}

bool ShmHub::Poll() {
  bool worked = false;
  // kArmed: this is the last poll before the sleep. kAsleep: this is the first poll after it.
  if (arming_ != Arming::kArmed) {
    int64_t patience_ns = kSocketsNs;
    if (arming_ == Arming::kAsleep) patience_ns = WakeLinks() ? kSocketsWokenNs : 0;
    if (poller_->now_ns() - sockets_checked_ns_ >= patience_ns) worked = CheckSockets();
  }
  bool removed = false;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i] != nullptr) worked |= links_[i]->PollLink();
    removed |= links_[i] == nullptr;
  }
  if (removed) links_.erase(std::remove(links_.begin(), links_.end(), nullptr), links_.end());
  if (arming_ == Arming::kArmed) {
    if (worked) {
      WakeLinks();
    } else {
      arming_ = Arming::kAsleep;
    }
  }
  return worked;
}

PollerSource::Sight ShmHub::Glance() {
  if (links_.empty()) return Sight::kBlind;
  for (const Link* link : links_) {
    if (link == nullptr || link->Ready()) return Sight::kWork;
  }
  return Sight::kNothing;
}

void ShmHub::Arm() {
  arming_ = Arming::kArmed;
  for (Link* link : links_) {
    if (link != nullptr) link->FallAsleep();
  }
}

bool ShmHub::WakeLinks() {
  arming_ = Arming::kAwake;
  bool woken = false;
  // By index: a link that learns of its end removes itself.
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i] != nullptr) woken |= links_[i]->WakeUp();
  }
  return woken;
}

void ShmHub::EndSockets() {
  std::vector<int> sockets;
  for (const auto& watched : watchers_) sockets.push_back(watched.first);
  std::sort(sockets.begin(), sockets.end());  // So that a simulation can be repeated.
  for (const int socket : sockets) shutdown(socket, SHUT_RDWR);
}

bool ShmHub::CheckSockets() {
  sockets_checked_ns_ = poller_->now_ns();
  epoll_event events[32];
  const int count = epoll_wait(epoll_.get(), events, 32, 0);
  for (int i = 0; i < count; ++i) {
    // Looked up by descriptor, because an earlier event may have removed it.
    auto found = watchers_.find(events[i].data.fd);
    if (found != watchers_.end()) found->second->OnSocket();
  }
  return count > 0;
}

// Connections of other users' processes are accepted only while a consumer is expected.
bool ShmHub::MayKnock(const LocalSocket& socket) const {
  const int64_t user = socket.peer_user();
  return user == geteuid() || user == 0 || !invited_.empty();
}

// A stranger is recognised only when it shows no token, and invited consumers wait in the same
// line. So under a flood the door opens less and less often, and afterwards at once again.
void ShmHub::PauseDoor() {
  door_pause_ns_ = std::clamp(2 * door_pause_ns_, kDoorPauseNs, kDoorLongestPauseNs);
  door_opens_ns_ = poller_->now_ns() + door_pause_ns_;
  Unwatch(door_socket_->fd());
  poller_->SetTimer(this, door_opens_ns_);
}

void ShmHub::OpenDoor() {
  if (std::exchange(door_opens_ns_, 0) == 0) return;
  if (!Watch(door_socket_->fd(), &door_).ok()) PauseDoor();
}

void ShmHub::OnDoor() {
  int accepted = 0;
  for (; accepted < kAcceptsPerLook; ++accepted) {
    std::unique_ptr<LocalSocket> socket = door_socket_->Accept();
    if (socket == nullptr) break;
    if (!MayKnock(*socket)) continue;
    // Silent connections must not keep others out.
    if (knocking_.size() >= kMaxKnocking) {
      Unwatch(knocking_.front()->socket->fd());
      knocking_.erase(knocking_.begin());
    }
    auto knocking = std::make_unique<Knocking>();
    knocking->hub = this;
    knocking->socket = std::move(socket);
    if (!Watch(knocking->socket->fd(), knocking.get()).ok()) continue;
    knocking_.push_back(std::move(knocking));
  }
  if (accepted < kAcceptsPerLook) {
    door_pause_ns_ = 0;
  } else {
    PauseDoor();
  }
}

void ShmHub::OnKnock(Knocking* knocking) {
  shm_wire::Packet packet;
  OwnedFd unwanted;
  const LocalSocket::Received received = knocking->socket->Receive(&packet, &unwanted);
  if (received == LocalSocket::Received::kNothing) return;
  Unwatch(knocking->socket->fd());
  std::unique_ptr<LocalSocket> socket = std::move(knocking->socket);
  knocking_.erase(std::find_if(knocking_.begin(), knocking_.end(),
                               [&](const auto& one) { return one.get() == knocking; }));
  if (received != LocalSocket::Received::kPacket || packet.type != shm_wire::PacketType::kJoin) {
    return;
  }
  for (size_t i = 0; i < invited_.size(); ++i) {
    uint8_t different = 0;  // Compares in the same time wherever they differ.
    for (size_t at = 0; at < packet.token.size(); ++at) {
      different |= static_cast<uint8_t>(packet.token[at] ^ invited_[i].token[at]);
    }
    if (different != 0) continue;
    const Invited invited = invited_[i];
    invited_.erase(invited_.begin() + static_cast<ptrdiff_t>(i));  // A token is valid once.
    if (poller_->now_ns() < invited.until_ns) invited.host->OnGuest(std::move(socket));
    return;
  }
  TRYST_LOG(Warning) << "this worker refuses a process of this host, which connected to the local "
                        "socket for shared memory "
                        "with a token that this worker has not given out";
}

}  // namespace tryst
