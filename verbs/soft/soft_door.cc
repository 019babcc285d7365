#include "verbs/soft/soft_door.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "verbs/soft/soft_queue_pair.h"

namespace tryst {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr size_t kMaxLeaving = 256;
constexpr int64_t kListenerPauseNs = 100'000'000;
// Within kNuisancesNs the door lets in kMostNuisances connections that come to nothing, then nobody
// until that time is over. A welcome peer waits that long behind them, and whoever polls this queue
// is spared the rest.
constexpr int kMostNuisances = 16;
constexpr int64_t kNuisancesNs = 20'000'000;

}  // namespace

absl::Status SoftDoor::Listen() {
  const SoftNicOptions& options = context_->options;
  if (options.pipes != nullptr) {
    auto pipes = options.pipes->Listen();
    if (!pipes.ok()) return pipes.status();
    pipes_ = *std::move(pipes);
    address_ = pipes_->address();
    WatchListeners(EPOLLIN, EPOLL_CTL_ADD);
    return absl::OkStatus();
  }
  for (const SocketAddress& wanted : context_->addresses) {
    const absl::Status listens = ListenOn(wanted);
    if (!listens.ok()) return listens;
  }
  if (address_.size() > kMaxListenerBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the addresses of a soft NIC are too long to be told to a peer: ", address_));
  }
  WatchListeners(EPOLLIN, EPOLL_CTL_ADD);
  return absl::OkStatus();
}

absl::Status SoftDoor::ListenOn(SocketAddress wanted) {
  const SoftNicOptions& options = context_->options;
  const uint16_t first = wanted.port();
  absl::StatusOr<Fd> fd = wanted.Listen();
  for (int i = 1; !fd.ok() && first != 0 && i < options.listen_ports && first + i < 65536; ++i) {
    wanted.set_port(static_cast<uint16_t>(first + i));
    fd = wanted.Listen();
  }
  if (!fd.ok()) return fd.status();
  listeners_.push_back(*std::move(fd));
  absl::StatusOr<SocketAddress> bound = SocketAddress::Of(listeners_.back().get());
  if (!bound.ok()) return bound.status();
  if (!options.advertised_host.empty()) {
    bound = SocketAddress::Parse(absl::StrCat(options.advertised_host, ":", bound->port()));
    if (!bound.ok()) return bound.status();
  }
  absl::StrAppend(&address_, address_.empty() ? "" : ",", bound->ToString());
  return absl::OkStatus();
}

void SoftDoor::WatchListeners(uint32_t events, int operation) {
  if (pipes_ != nullptr) {
    return epoll_->Watch(pipes_->event_fd(), events, SoftEpoll::kListenerId, operation);
  }
  for (const Fd& fd : listeners_) {
    epoll_->Watch(fd.get(), events, SoftEpoll::kListenerId, operation);
  }
}

// The listening sockets would stay readable and keep sleepers awake.
void SoftDoor::PauseListening(int64_t until_ns) {
  listening_ = false;
  listen_again_ns_ = until_ns;
  WatchListeners(0, EPOLL_CTL_MOD);
}

void SoftDoor::Accept() {
  const int64_t now_ns = context_->clock->NowNs();
  if (now_ns - nuisances_since_ns_ >= kNuisancesNs) {
    nuisances_since_ns_ = now_ns;
    nuisances_ = 0;
  }
  if (nuisances_ >= kMostNuisances) return PauseListening(nuisances_since_ns_ + kNuisancesNs);
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    SoftStream came = NextStream();
    if (!came.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        PauseListening(now_ns + kListenerPauseNs);
      }
      return;
    }
    if (strangers_.size() >= static_cast<size_t>(context_->options.max_pending_handshakes)) {
      strangers_.erase(strangers_.begin());
      context_->handshakes_timed_out.fetch_add(1);
      ++nuisances_;
    }
    Stranger stranger;
    stranger.stream = std::move(came);
    stranger.deadline_ns = now_ns + absl::ToInt64Nanoseconds(context_->options.handshake_timeout);
    epoll_->Watch(stranger.stream.fd(), EPOLLIN, epoll_->NewId(), EPOLL_CTL_ADD);
    strangers_.push_back(std::move(stranger));
  }
}

// Invalid: nobody waits, or errno says what is missing.
SoftStream SoftDoor::NextStream() {
  errno = 0;
  if (pipes_ != nullptr) return SoftStream(pipes_->Accept());
  Fd fd;
  for (const Fd& listener : listeners_) {
    fd = AcceptFrom(listener.get());
    if (fd.valid() || errno != EAGAIN) break;
  }
  if (!fd.valid() || context_->tls == nullptr) return SoftStream(std::move(fd));
  auto tls = context_->tls->Accept(fd.get(), [this](uint32_t number) -> absl::optional<Token> {
    const auto found = queue_pairs_->find(number);
    if (found == queue_pairs_->end()) return absl::nullopt;
    return found->second->token();
  });
  if (tls != nullptr) return SoftStream(std::move(fd), std::move(tls));
  errno = ENOMEM;
  return SoftStream();
}

void SoftDoor::HearStrangers() {
  for (size_t i = 0; i < strangers_.size();) {
    if (HearStranger(&strangers_[i])) {
      ++i;
    } else {
      strangers_.erase(strangers_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

bool SoftDoor::HearStranger(Stranger* stranger) {
  const ssize_t got =
      stranger->stream.Receive(stranger->hello + stranger->got, kHelloBytes - stranger->got);
  if (got < 0 && errno == EAGAIN) return true;
  if (got < 0 && errno == EPROTO) context_->tokens_refused.fetch_add(1);
  if (got <= 0) {
    ++nuisances_;
    return false;
  }
  stranger->got += static_cast<size_t>(got);
  if (stranger->got < kHelloBytes) return true;
  SoftHello hello;
  if (!DecodeHello(stranger->hello, &hello)) {
    context_->protocol_errors.fetch_add(1);
    ++nuisances_;
    return false;
  }
  epoll_->Unwatch(stranger->stream.fd());
  const auto found = queue_pairs_->find(hello.to_number);
  if (found != queue_pairs_->end() && found->second->Adopt(hello, &stranger->stream)) {
    context_->connections_accepted.fetch_add(1);
  } else {
    context_->tokens_refused.fetch_add(1);
    ++nuisances_;
  }
  return false;
}

void SoftDoor::RunTimers(int64_t now_ns) {
  const auto late = [now_ns](const auto& one) { return now_ns >= one.deadline_ns; };
  const auto first_late = std::stable_partition(strangers_.begin(), strangers_.end(),
                                                [&](const Stranger& one) { return !late(one); });
  context_->handshakes_timed_out.fetch_add(static_cast<uint64_t>(strangers_.end() - first_late));
  strangers_.erase(first_late, strangers_.end());
  leaving_.erase(std::remove_if(leaving_.begin(), leaving_.end(), late), leaving_.end());
  if (!listening_ && now_ns >= listen_again_ns_) {
    listening_ = true;
    WatchListeners(EPOLLIN, EPOLL_CTL_MOD);
  }
}

int64_t SoftDoor::next_timer_ns() const {
  int64_t at_ns = listening_ ? INT64_MAX : listen_again_ns_;
  for (const Stranger& stranger : strangers_) at_ns = std::min(at_ns, stranger.deadline_ns);
  for (const Leaving& leaving : leaving_) at_ns = std::min(at_ns, leaving.deadline_ns);
  return at_ns;
}

void SoftDoor::CloseGently(SoftStream stream, std::vector<uint8_t> last) {
  Leaving leaving;
  leaving.stream = std::move(stream);
  leaving.deadline_ns =
      context_->clock->NowNs() + absl::ToInt64Nanoseconds(context_->options.handshake_timeout);
  leaving.last = std::move(last);
  if (!SeeOffOne(&leaving)) return;
  if (leaving_.size() >= kMaxLeaving) leaving_.erase(leaving_.begin());
  leaving.id = epoll_->NewId();
  const bool for_room = leaving.stream.shows_room_apart() &&
                        (leaving.sent < leaving.last.size() || leaving.stream.HasUnsent());
  epoll_->Watch(leaving.stream.fd(), for_room ? EPOLLIN | EPOLLOUT : EPOLLIN, leaving.id,
                EPOLL_CTL_ADD);
  leaving_.push_back(std::move(leaving));
}

void SoftDoor::SeeOff() {
  leaving_.erase(std::remove_if(leaving_.begin(), leaving_.end(),
                                [this](Leaving& one) { return !SeeOffOne(&one); }),
                 leaving_.end());
}

// False when the connection can be closed.
bool SoftDoor::SeeOffOne(Leaving* leaving) {
  // What is unread when a socket is closed makes the kernel throw away what is unsent. This comes
  // first: it may take back what a pipe says of room.
  uint8_t ignored[4096];
  ssize_t got = 1;
  for (int i = 0; i < 256 && got > 0; ++i) got = leaving->stream.Discard(ignored, sizeof(ignored));
  if (got < 0 && errno != EAGAIN) return false;
  if (leaving->sent < leaving->last.size() || leaving->stream.HasUnsent()) {
    const ssize_t sent = leaving->stream.Send(leaving->last.data() + leaving->sent,
                                              leaving->last.size() - leaving->sent);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) leaving->sent += static_cast<size_t>(sent);
    if (leaving->sent == leaving->last.size() && !leaving->stream.HasUnsent()) {
      leaving->stream.EndSending();
      if (leaving->id != 0)
        epoll_->Watch(leaving->stream.fd(), EPOLLIN, leaving->id, EPOLL_CTL_MOD);
    }
  }
  return got != 0;
}

}  // namespace tryst
