#include "plugins/nccl/peer_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "verbs/start_thread.h"

namespace tryst::nccl {
namespace {

// The bytes on the socket; each says what follows.
constexpr char kLife = 'l';
constexpr char kBye = 'b';
constexpr char kFailure = 'f';  // Then one byte of length, and the reason.
constexpr size_t kMaxReason = 255;
constexpr int64_t kForgetAfterNs = 2'000'000'000;
constexpr int kLooksPerTimeout = 4;

void Send(const Fd& socket, const std::string& bytes) {
  // If the socket is full, the peer does not read, so the message would not help.
  (void)!send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

std::string PeerLink::why() const {
  MutexLock lock(&mu_);
  return why_;
}

void PeerLink::End(State state, const std::string& why) {
  MutexLock lock(&mu_);
  if (state_.load() == State::kGone) return;
  why_ = why;
  state_.store(state, std::memory_order_release);
}

absl::StatusOr<std::unique_ptr<PeerWatch>> PeerWatch::Start(int peer_timeout_ms,
                                                            const Clock* clock) {
  std::unique_ptr<PeerWatch> watch(new PeerWatch(peer_timeout_ms, clock));
  const absl::Status started = StartThread(
      "watching NCCL's peers", [raw = watch.get()] { raw->Loop(); }, &watch->thread_);
  if (!started.ok()) return started;
  return watch;
}

PeerWatch::PeerWatch(int peer_timeout_ms, const Clock* clock)
    : peer_timeout_ms_(peer_timeout_ms),
      clock_(clock),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  epoll_event event = {};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), &event);
}

PeerWatch::~PeerWatch() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<PeerLink> PeerWatch::Add(Fd socket, const PeerName& name) {
  const unsigned timeout_ms = static_cast<unsigned>(peer_timeout_ms_);
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
  auto link = std::make_shared<PeerLink>(name);
  MutexLock lock(&mu_);
  const uint64_t id = next_id_++;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event);
  Watched& watched = watched_[id];
  watched.socket = std::move(socket);
  watched.link = link;
  return link;
}

// Closing at once could discard what the peer has not read yet.
void PeerWatch::Remove(const std::shared_ptr<PeerLink>& link) {
  MutexLock lock(&mu_);
  for (auto& [id, watched] : watched_) {
    if (watched.link != link) continue;
    Send(watched.socket, std::string(1, kBye));
    shutdown(watched.socket.get(), SHUT_WR);
    watched.link = nullptr;
    watched.forget_at_ns = clock_->NowNs() + kForgetAfterNs;
    return;
  }
}

void PeerWatch::TellFailure(const std::shared_ptr<PeerLink>& link, const std::string& why) {
  const std::string reason = why.substr(0, kMaxReason);
  MutexLock lock(&mu_);
  for (auto& [id, watched] : watched_) {
    if (watched.link != link) continue;
    Send(watched.socket, absl::StrCat(std::string(1, kFailure),
                                      std::string(1, static_cast<char>(reason.size())), reason));
    return;
  }
}

void PeerWatch::Take(Watched* watched) {
  std::string& heard = watched->heard;
  size_t used = 0;
  while (used < heard.size()) {
    if (heard[used] == kBye) {
      if (watched->link != nullptr) {
        watched->link->End(PeerLink::State::kClosed,
                           absl::StrCat(watched->link->name().ToString(), " closed its end"));
      }
    } else if (heard[used] == kFailure) {
      if (heard.size() - used < 2) break;
      const size_t length = static_cast<uint8_t>(heard[used + 1]);
      if (heard.size() - used - 2 < length) break;
      if (watched->link != nullptr) {
        watched->link->End(PeerLink::State::kGone,
                           absl::StrCat(watched->link->name().ToString(),
                                        " gave up: ", heard.substr(used + 2, length)));
      }
      used += 1 + length;
    }
    ++used;
  }
  heard.erase(0, used);
}

bool PeerWatch::HearFrom(Watched* watched) {
  char bytes[1024];
  for (;;) {
    const ssize_t got = recv(watched->socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) {
      watched->heard.append(bytes, static_cast<size_t>(got));
      Take(watched);
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    const int error = got == 0 ? 0 : errno;
    if (watched->link != nullptr && watched->link->state() == PeerLink::State::kAlive) {
      EndAllOf(
          watched->link->name(),
          absl::StrCat(
              error == ETIMEDOUT
                  ? absl::StrCat("its machine has not answered for ", peer_timeout_ms_, " ms")
                  : "its connection ended without a word, so it was killed or crashed",
              error == 0 || error == ETIMEDOUT ? "" : absl::StrCat(" (", strerror(error), ")")));
    }
    return false;
  }
}

// A process that ends takes all of its comms with it.
void PeerWatch::EndAllOf(const PeerName& name, const std::string& why) {
  for (auto& [id, watched] : watched_) {
    if (watched.link == nullptr || watched.link->name().process != name.process) continue;
    if (watched.link->state() != PeerLink::State::kAlive) continue;
    watched.link->End(PeerLink::State::kGone,
                      absl::StrCat(watched.link->name().ToString(), " is gone: ", why));
  }
}

void PeerWatch::Hear(uint64_t id) {
  MutexLock lock(&mu_);
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  if (HearFrom(&found->second)) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.socket.get(), nullptr);
  if (found->second.link == nullptr) {
    watched_.erase(found);
  } else {
    found->second.socket.Close();
  }
}

// Sends one byte to each process. Its kernel must acknowledge it in time.
void PeerWatch::SignalLife() {
  std::set<uint64_t> told;
  MutexLock lock(&mu_);
  for (auto& [id, watched] : watched_) {
    if (watched.link == nullptr || watched.link->state() != PeerLink::State::kAlive) continue;
    if (told.insert(watched.link->name().process).second) {
      Send(watched.socket, std::string(1, kLife));
    }
  }
}

void PeerWatch::ForgetOld() {
  const int64_t now_ns = clock_->NowNs();
  MutexLock lock(&mu_);
  for (auto it = watched_.begin(); it != watched_.end();) {
    const bool old = it->second.link == nullptr && now_ns >= it->second.forget_at_ns;
    it = old ? watched_.erase(it) : std::next(it);
  }
}

void PeerWatch::Loop() {
  pthread_setname_np(pthread_self(), "tryst-nccl-peer");
  const int64_t period_ns = int64_t{peer_timeout_ms_} * 1'000'000 / kLooksPerTimeout;
  int64_t next_ns = clock_->NowNs() + period_ns;
  for (;;) {
    const int64_t wait_ms = std::max<int64_t>(0, (next_ns - clock_->NowNs()) / 1'000'000 + 1);
    epoll_event events[64];
    const int ready = epoll_wait(epoll_.get(), events, 64, static_cast<int>(wait_ms));
    for (int i = 0; i < ready; ++i) {
      if (events[i].data.u64 == 0) return;
      Hear(events[i].data.u64);
    }
    if (clock_->NowNs() < next_ns) continue;
    next_ns = clock_->NowNs() + period_ns;
    SignalLife();
    ForgetOld();
  }
}

}  // namespace tryst::nccl
