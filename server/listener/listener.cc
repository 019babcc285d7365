#include "server/listener/listener.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "absl/types/span.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr int64_t kRestNs = 100'000'000;
// How often the listener measures what arrives on a connection of a stranger and of a member. gRPC
// reads some 5 MB/s of the smallest frames, which bounds what can arrive unseen.
constexpr int64_t kStrangerLookNs = 2'000'000;
constexpr int64_t kMemberLookNs = 100'000'000;
constexpr uint64_t kWakeId = UINT64_MAX;
constexpr uint64_t kListenerId = uint64_t{1} << 63;  // The listening socket's index is added.

void Watch(int epoll, int operation, int fd, uint32_t events, uint64_t id) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll, operation, fd, &event);
}

// A filter drops all packets on arrival. TCP resends them, at ever longer intervals.
void HoldBack(int fd) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &nothing};
  setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

void LetGoOn(int fd) {
  const int unused = 0;
  setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

// Bytes that have arrived and were not read are not worth gRPC's time any more. A caller that is
// held back is let go first: else the filter would drop what tells its kernel of the end, too.
void CutOff(int fd) {
  LetGoOn(fd);
  shutdown(fd, SHUT_RDWR);
  recv(fd, nullptr, INT_MAX, MSG_TRUNC | MSG_DONTWAIT);
}

bool OutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address,
                                                         ConnectionLimits limits) {
  absl::StatusOr<ListeningSockets> listening = ListenOn(address);
  if (!listening.ok()) return listening.status();
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) {
    return absl::UnavailableError(
        "the process has no file descriptor left to listen with: raise the limit of open files "
        "(ulimit -n)");
  }
  return std::unique_ptr<Listener>(
      new Listener(*std::move(listening), limits, std::move(epoll), std::move(wake)));
}

Listener::Listener(ListeningSockets listening, ConnectionLimits limits, OwnedFd epoll, OwnedFd wake)
    : epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      listening_(std::move(listening)),
      table_(limits) {}

Listener::~Listener() { Stop(); }

void Listener::Stop() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    delivery_.NotifyAll();
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  {
    // A flooding connection may still keep gRPC on the delivery thread; nobody watches it any more.
    MutexLock lock(&mu_);
    for (const auto& [id, socket] : sockets_) {
      LetGoOn(socket.get());
      if (table_.is_stranger(id)) shutdown(socket.get(), SHUT_RDWR);
    }
  }
  if (delivering_.joinable()) delivering_.join();
  listening_.sockets.clear();
  sockets_.clear();
}

void Listener::Start(Deliver deliver) {
  deliver_ = std::move(deliver);
  Watch(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWakeId);
  for (size_t i = 0; i < listening_.sockets.size(); ++i) {
    Watch(epoll_.get(), EPOLL_CTL_ADD, listening_.sockets[i].get(), EPOLLIN, kListenerId + i);
  }
  delivering_ = std::thread([this] { RunDeliveries(); });
  thread_ = std::thread([this] { Run(); });
}

void Listener::Authenticated(absl::string_view peer) {
  const std::string address = AddressTextOfPeer(peer);
  {
    MutexLock lock(&mu_);
    if (!table_.Authenticated(address)) return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

ConnectionCounts Listener::counts() const {
  MutexLock lock(&mu_);
  return table_.counts();
}

int64_t Listener::NextTurnNs() const {
  int64_t next = std::min(next_look_ns_, rests_until_ns_ == 0 ? INT64_MAX : rests_until_ns_);
  if (!delayed_.empty()) next = std::min(next, delayed_.begin()->first);
  MutexLock lock(&mu_);
  return std::min({next, table_.next_expiry_ns(), table_.next_resume_ns()});
}

void Listener::Run() {
  for (;;) {
    const int64_t next_ns = NextTurnNs();
    const int64_t left_ns =
        next_ns == INT64_MAX ? 0 : std::max<int64_t>(0, next_ns - clock_.NowNs());
    const int wait_ms =
        next_ns == INT64_MAX ? -1 : static_cast<int>((left_ns + 999'999) / 1'000'000);
    epoll_event events[32];
    const int count = epoll_wait(epoll_.get(), events, 32, wait_ms);
    for (const epoll_event& event : absl::MakeConstSpan(events, std::max(count, 0))) {
      const uint64_t id = event.data.u64;
      if (id == kWakeId) {
        uint64_t times;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &times, sizeof(times));
        continue;
      }
      if (id >= kListenerId) {
        Accept(listening_.sockets[id - kListenerId].get());
      } else if ((event.events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0) {
        Forget(id);
      } else {
        active_.insert(id);
        MutexLock lock(&mu_);
        next_look_ns_ =
            std::min(next_look_ns_,
                     clock_.NowNs() + (table_.is_stranger(id) ? kStrangerLookNs : kMemberLookNs));
      }
    }
    const int64_t now_ns = clock_.NowNs();
    if (now_ns >= next_look_ns_) LookAtActive();
    DeliverDelayed(now_ns);
    if (rests_until_ns_ != 0 && now_ns >= rests_until_ns_) {
      rests_until_ns_ = 0;
      for (size_t i = 0; i < listening_.sockets.size(); ++i) {
        Watch(epoll_.get(), EPOLL_CTL_MOD, listening_.sockets[i].get(), EPOLLIN, kListenerId + i);
      }
    }
    std::vector<Id> late;
    std::vector<Id> go_on;
    {
      MutexLock lock(&mu_);
      if (closing_) return;
      table_.Resume(now_ns, &go_on);
      table_.Expire(now_ns, &late);
    }
    Resume(go_on);
    End(late);
  }
}

void Listener::Accept(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof(peer);
    OwnedFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length,
                       SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (OutOfDescriptors(errno)) Rest();
      return;
    }
    TakeIn(listener, std::move(fd), AddressText(peer));
  }
}

// A listening socket that cannot accept would stay readable and keep this thread awake.
void Listener::Rest() {
  if (rests_until_ns_ == 0) {
    TRYST_LOG(Warning)
        << "the process has no file descriptor left for another connection on port "
        << listening_.port
        << ": connections wait until one is closed; raise the limit of open files (ulimit -n)";
    MutexLock lock(&mu_);
    table_.Rested();
  }
  rests_until_ns_ = clock_.NowNs() + kRestNs;
  for (size_t i = 0; i < listening_.sockets.size(); ++i) {
    Watch(epoll_.get(), EPOLL_CTL_MOD, listening_.sockets[i].get(), 0, kListenerId + i);
  }
}

void Listener::TakeIn(int listener, OwnedFd fd, const std::string& address) {
  OwnedFd ours(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  std::vector<Id> crowded_out;
  Id id = 0;
  int64_t delay_ns = 0;
  {
    MutexLock lock(&mu_);
    if (ours.valid()) {
      delay_ns = table_.DelayNs(address, clock_.NowNs());
      id = table_.Add(address, clock_.NowNs(), &crowded_out);
    } else {
      table_.Refused();
    }
  }
  End(crowded_out);
  if (id == 0) return;
  const int one = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  Watch(epoll_.get(), EPOLL_CTL_ADD, ours.get(), EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, id);
  sockets_.emplace(id, std::move(ours));
  if (delay_ns == 0) return HandOver(id, {listener, std::move(fd)});
  delayed_.emplace(clock_.NowNs() + delay_ns,
                   std::make_pair(id, Delivery{listener, std::move(fd)}));
}

void Listener::HandOver(Id id, Delivery delivery) {
  MutexLock lock(&mu_);
  deliveries_.emplace(id, std::move(delivery));
  delivery_.NotifyAll();
}

void Listener::DeliverDelayed(int64_t now_ns) {
  while (!delayed_.empty() && delayed_.begin()->first <= now_ns) {
    auto& [id, delivery] = delayed_.begin()->second;
    HandOver(id, std::move(delivery));
    delayed_.erase(delayed_.begin());
  }
}

void Listener::RunDeliveries() {
  for (;;) {
    Delivery next;
    {
      MutexLock lock(&mu_);
      while (deliveries_.empty() && !closing_) delivery_.Wait(&mu_);
      if (closing_) return;
      next = std::move(deliveries_.begin()->second);
      deliveries_.erase(deliveries_.begin());
    }
    deliver_(next.listener_fd, next.fd.release());
  }
}

void Listener::LookAtActive() {
  next_look_ns_ = INT64_MAX;
  const std::set<Id> active = std::exchange(active_, {});
  for (Id id : active) Look(id);
}

void Listener::Look(Id id) {
  const auto found = sockets_.find(id);
  if (found == sockets_.end()) return;
  tcp_info seen = {};
  socklen_t length = sizeof(seen);
  if (getsockopt(found->second.get(), IPPROTO_TCP, TCP_INFO, &seen, &length) != 0) return;
  bool stays;
  bool waits;
  {
    MutexLock lock(&mu_);
    const int64_t now_ns = clock_.NowNs();
    stays = table_.Saw(id, seen.tcpi_bytes_received, seen.tcpi_bytes_sent, now_ns);
    waits = stays && table_.MustWait(id, now_ns);
  }
  if (!stays) CutOff(found->second.get());
  if (waits) HoldBack(found->second.get());
  Watch(epoll_.get(), EPOLL_CTL_MOD, found->second.get(), EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, id);
}

void Listener::Resume(const std::vector<Id>& ids) {
  for (Id id : ids) {
    const auto found = sockets_.find(id);
    if (found != sockets_.end()) LetGoOn(found->second.get());
  }
}

// gRPC sees the end of the stream and closes its descriptor.
void Listener::End(const std::vector<Id>& ids) {
  for (Id id : ids) {
    const int fd = sockets_.at(id).get();
    CutOff(fd);
    Watch(epoll_.get(), EPOLL_CTL_MOD, fd, EPOLLRDHUP, id);
  }
}

void Listener::Forget(Id id) {
  const auto found = sockets_.find(id);
  if (found == sockets_.end()) return;
  tcp_info seen = {};
  socklen_t length = sizeof(seen);
  (void)getsockopt(found->second.get(), IPPROTO_TCP, TCP_INFO, &seen, &length);
  // Closing ours does not remove it from the epoll set while gRPC's descriptor is open.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.get(), nullptr);
  sockets_.erase(found);
  active_.erase(id);
  for (auto it = delayed_.begin(); it != delayed_.end(); ++it) {
    if (it->second.first != id) continue;
    delayed_.erase(it);
    break;
  }
  MutexLock lock(&mu_);
  deliveries_.erase(id);  // What gRPC was not given yet holds a descriptor, too.
  table_.Remove(id, seen.tcpi_bytes_received, clock_.NowNs());
}

ConnectionLimits WithinDescriptors(ConnectionLimits limits) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return limits;
  const size_t most = std::max<size_t>(4, static_cast<size_t>(files.rlim_cur) / 4);
  limits.connections = std::min(limits.connections, most);
  limits.strangers = std::min(limits.strangers, std::max<size_t>(2, most / 4));
  limits.strangers_of_address = std::min(limits.strangers_of_address, limits.strangers);
  return limits;
}

}  // namespace tryst
