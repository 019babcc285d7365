#include "verbs/soft/soft_queue_pair.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr int64_t kFirstRedialNs = 1'000'000;
constexpr int64_t kLastRedialNs = 100'000'000;
// The first lane receives many small frames in one call.
constexpr size_t kFirstStagingBytes = SoftStaging::kBytes;
constexpr size_t kLaterStagingBytes = 1 << 10;
constexpr uint32_t kFirstSends = 8;
constexpr int64_t kLastWaitNs = 20'000'000;
constexpr useconds_t kLookAgainUs = 50;

uint64_t MaskFor(uint32_t depth) {
  uint64_t capacity = 1;
  while (capacity < depth) capacity *= 2;
  return capacity - 1;
}

int64_t PeerBudget(const QueuePairOptions& options) {
  if (options.ack_timeout == 0) return Patience::kForEver;  // As in the InfiniBand specification.
  return (int64_t{4096} << options.ack_timeout) * (options.retry_count + 1);
}

int64_t ReceiveBudget(const SoftNicOptions& nic, const QueuePairOptions& options) {
  if (options.rnr_retry_count == 7) return Patience::kForEver;
  return absl::ToInt64Nanoseconds(nic.rnr_timer) * (options.rnr_retry_count + 1);
}

}  // namespace

SoftQueuePair::SoftQueuePair(SoftContext* context, SoftCompletionQueue* completions,
                             const QueuePairOptions& options, uint32_t number)
    : context_(context),
      completions_(completions),
      options_(options),
      number_(number),
      token_(context->NewToken()),
      receive_mask_(MaskFor(options.receive_depth)),
      send_mask_(MaskFor(std::min(options.send_depth, kFirstSends))),
      send_slots_(send_mask_ + 1),
      send_entries_((send_mask_ + 1) * options.max_entries),
      inline_bytes_(send_mask_ + 1),
      receive_ids_(receive_mask_ + 1),
      reads_(context->options.limits.max_reads_in_flight),
      for_answers_(PeerBudget(options)),
      for_receives_(ReceiveBudget(context->options, options)),
      for_connections_(PeerBudget(options)) {
  for (int i = 0; i < context->options.sockets_per_queue_pair; ++i) {
    lanes_.push_back(std::make_unique<SoftLane>());
    lanes_.back()->owner = this;
    lanes_.back()->index = i;
    lanes_.back()->capacity = i == 0 ? kFirstStagingBytes : kLaterStagingBytes;
  }
}

SoftQueuePair::~SoftQueuePair() {
  AwaitPeersKernel();
  Break();
  completions_->Detach(this);
  completions_->Unreserve(options_.send_depth + options_.receive_depth);
}

void SoftQueuePair::Attach() const {
  if (attached_) return;
  attached_ = true;
  completions_->Attach(const_cast<SoftQueuePair*>(this));
}

std::string SoftQueuePair::LocalAddress() const {
  Attach();
  SoftAddress address;
  address.token = token_;
  address.number = number_;
  address.sockets = static_cast<uint8_t>(context_->options.sockets_per_queue_pair);
  address.tls = context_->tls != nullptr;
  address.listener = completions_->listener_address();
  return EncodeSoftAddress(address);
}

absl::Status SoftQueuePair::Connect(absl::string_view remote_address) {
  if (state_ != QueuePairState::kReset) {
    return absl::FailedPreconditionError("a queue pair connects once");
  }
  absl::StatusOr<SoftAddress> peer = DecodeSoftAddress(remote_address);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<SocketAddress> listener = SocketAddress::Parse(peer->listener);
  if (!listener.ok()) return listener.status();
  if (peer->tls != (context_->tls != nullptr)) {
    return absl::InvalidArgumentError("one side uses TLS and the other does not");
  }
  if (peer->token == token_) {
    return absl::InvalidArgumentError("a queue pair cannot connect to itself");
  }
  Attach();
  peer_ = *std::move(peer);
  peer_listener_ = *listener;
  // Both sides know both tokens, so they agree on which one dials.
  dialler_ = token_ < peer_.token;
  state_ = QueuePairState::kReady;
  moved_ = true;
  completions_->NoteActive(this);
  const size_t lanes = std::min<size_t>(lanes_.size(), peer_.sockets);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    SoftLane* const lane = lanes_[i].get();
    const bool held = lane->state == SoftLane::State::kHeld;
    if (held && (dialler_ || i >= lanes)) DropLane(lane);
  }
  lanes_.resize(lanes);
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (dialler_) {
      Dial(lane.get());
    } else if (lane->state == SoftLane::State::kHeld) {
      Answer(lane.get());
    }
  }
  completions_->NotePosted();
  return absl::OkStatus();
}

void SoftQueuePair::Dial(SoftLane* lane) {
  Fd fd = peer_listener_.Dial();
  std::unique_ptr<SoftTlsSession> tls;
  if (context_->tls != nullptr && fd.valid()) {
    tls = context_->tls->Dial(fd.get(), peer_.number, peer_.token);
  }
  if (!fd.valid() || (context_->tls != nullptr && tls == nullptr)) {
    RetryDial(lane);
    return;
  }
  lane->stream = SoftStream(std::move(fd), std::move(tls));
  lane->state = SoftLane::State::kDialling;
  completions_->AddLane(lane);
}

void SoftQueuePair::RetryDial(SoftLane* lane) {
  DropLane(lane);
  lane->redial_after_ns =
      std::min(std::max(lane->redial_after_ns * 2, kFirstRedialNs), kLastRedialNs);
  lane->redial_at_ns = context_->clock->NowNs() + lane->redial_after_ns;
}

SoftHello SoftQueuePair::NewHello(const SoftLane& lane) {
  SoftHello hello;
  hello.token = peer_.token;
  hello.to_number = peer_.number;
  hello.from_number = number_;
  hello.socket = static_cast<uint8_t>(lane.index);
  hello.sockets = static_cast<uint8_t>(lanes_.size());
  hello.receives = static_cast<uint32_t>(receive_end_);
  if (lane.index == 0) receives_announced_ = hello.receives;
  return hello;
}

void SoftQueuePair::SendHello(SoftLane* lane) {
  uint8_t bytes[kHelloBytes];
  EncodeHello(NewHello(*lane), bytes);
  const ssize_t sent = lane->stream.Send(bytes, sizeof(bytes));
  if (sent < 0 && errno == EAGAIN) {
    completions_->WatchLane(lane);
    return;
  }
  if (sent != sizeof(bytes)) {
    RetryDial(lane);
    return;
  }
  lane->state = SoftLane::State::kGreeted;
  completions_->WatchLane(lane);
}

// Handles the acceptor's answer to our hello.
bool SoftQueuePair::TakeHello(SoftLane* lane, const uint8_t* bytes) {
  SoftHello hello;
  if (!DecodeHello(bytes, &hello) || !TokensEqual(hello.token, token_) ||
      hello.to_number != number_ || hello.from_number != peer_.number ||
      hello.socket != lane->index || hello.sockets != lanes_.size()) {
    // Another process has the peer's port.
    context_->tokens_refused.fetch_add(1);
    RetryDial(lane);
    return false;
  }
  RaiseLane(lane, hello);
  return true;
}

bool SoftQueuePair::Adopt(const SoftHello& hello, SoftStream* stream) {
  if (!TokensEqual(hello.token, token_) || state_ == QueuePairState::kBroken) return false;
  if (hello.socket >= lanes_.size()) return false;
  SoftLane* const lane = lanes_[hello.socket].get();
  if (lane->state != SoftLane::State::kIdle) return false;
  if (state_ == QueuePairState::kReady && !Expects(hello)) return false;
  lane->stream = std::move(*stream);
  lane->hello = hello;
  lane->state = SoftLane::State::kHeld;
  completions_->AddLane(lane);
  completions_->NoteActive(this);
  if (state_ == QueuePairState::kReady) {
    Answer(lane);
    Pump();
    GiveBackSends();
  }
  return true;
}

bool SoftQueuePair::Expects(const SoftHello& hello) const {
  return !dialler_ && !hanging_up_ && hello.from_number == peer_.number &&
         hello.sockets == lanes_.size();
}

// Handles the held socket's hello, now that we know our peer.
void SoftQueuePair::Answer(SoftLane* lane) {
  if (!Expects(lane->hello)) {
    context_->tokens_refused.fetch_add(1);
    DropLane(lane);
    return;
  }
  uint8_t bytes[kHelloBytes];
  EncodeHello(NewHello(*lane), bytes);
  if (lane->stream.Send(bytes, sizeof(bytes)) != sizeof(bytes)) {
    DropLane(lane);  // The peer, if it was the one, dials again.
    return;
  }
  RaiseLane(lane, lane->hello);
}

// The peer may give up while we do not know it yet.
void SoftQueuePair::LookAtHeld(SoftLane* lane) {
  uint8_t byte;
  const ssize_t got = recv(lane->stream.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  DropLane(lane);
}

void SoftQueuePair::RaiseLane(SoftLane* lane, const SoftHello& hello) {
  lane->state = SoftLane::State::kUp;
  lane->redial_after_ns = 0;
  if (lane->index == 0) peer_receives_ = hello.receives;
  moved_ = true;
  if (lane->index == 0 && CreditDue()) OweAnswer();
}

void SoftQueuePair::DropLane(SoftLane* lane) {
  if (lane->id != 0) completions_->RemoveLane(lane);
  lane->stream.Close();
  lane->state = SoftLane::State::kIdle;
  lane->full = false;
  lane->begin = lane->end = 0;
  GiveBackStaging(lane);
  GiveBackBatch(lane);
}

// Sends without a completion may be under way. The peer can read what its kernel has; what ours
// still has is thrown away if the peer has written to us meanwhile.
void SoftQueuePair::AwaitPeersKernel() const {
  if (state_ != QueuePairState::kReady || sends_wait_for_poll()) return;
  bool unheard = options_.ends_when_left && acked_ != next_sequence_;
  for (uint64_t i = send_oldest_; i < send_end_; ++i) {
    unheard = unheard || !send_slots_[i & send_mask_].signaled;
  }
  if (!unheard) return;  // The code that waits for them has given up.
  const int64_t end_ns = context_->clock->NowNs() + kLastWaitNs;
  int unread = 0;
  while (ioctl(lanes_[0]->stream.fd(), SIOCOUTQ, &unread) == 0 && unread > 0 &&
         context_->clock->NowNs() < end_ns) {
    usleep(kLookAgainUs);
  }
}

void SoftQueuePair::Break() {
  if (state_ == QueuePairState::kBroken) return;
  // Tell the peer what has landed, so that it need not guess.
  PayDebt();
  BreakWith(CompletionStatus::kFlushed, kNobody);
}

// When one lane ends, all end. But the peer's last frames come on the first lane, and may still be
// under way when a later lane is closed.
void SoftQueuePair::LoseLane(SoftLane* lane) {
  if (state_ != QueuePairState::kReady) return;
  if (lane->index == 0 || !lanes_[0]->up()) {
    Lost();
    return;
  }
  DropLane(lane);
  hanging_up_ = true;
  shutdown(lanes_[0]->stream.fd(), SHUT_WR);
}

void SoftQueuePair::Lost() { BreakWith(CompletionStatus::kRetryExceeded, kNobody); }

void SoftQueuePair::BreakWith(CompletionStatus first, uint64_t culprit) {
  if (state_ == QueuePairState::kBroken) return;
  state_ = QueuePairState::kBroken;
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    UnpinPayload(lane.get());
    DropLane(lane.get());
  }
  incoming_.active = false;
  FlushAll(first, culprit);
}

void SoftQueuePair::ReportFatal() {
  NicEvent event;
  event.kind = NicEvent::Kind::kQueuePairFatal;
  event.port = options_.port;
  event.id = number_;
  context_->events.Add(event);
}

// Whether we wait for the peer's answer. Waiting for the peer's receive does not count.
bool SoftQueuePair::WaitsForPeer() const {
  if (hanging_up_) return true;
  if (send_oldest_ == send_end_) return false;
  return !starved_ || send_oldest_ != send_next_;
}

// Whether one of our dials got no answer at all.
bool SoftQueuePair::Unreachable() const {
  if (!dialler_ || hanging_up_) return false;
  return std::any_of(lanes_.begin(), lanes_.end(), [](const std::unique_ptr<SoftLane>& lane) {
    return lane->state == SoftLane::State::kIdle || lane->state == SoftLane::State::kDialling;
  });
}

void SoftQueuePair::OnTimer(int64_t now_ns) {
  if (state_ != QueuePairState::kReady) return;
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    const bool waits = lane->state == SoftLane::State::kIdle && dialler_ && !hanging_up_;
    if (waits && now_ns >= lane->redial_at_ns) {
      Dial(lane.get());
    }
  }
  if (moved_ || !WaitsForPeer()) for_answers_.Restart();
  if (!Unreachable()) for_connections_.Restart();
  if (!starved_) for_receives_.Restart();
  moved_ = false;
  if ((WaitsForPeer() && for_answers_.Exhausted(now_ns)) ||
      (Unreachable() && for_connections_.Exhausted(now_ns))) {
    Lost();
  } else if (starved_ && for_receives_.Exhausted(now_ns)) {
    send(send_next_).error = CompletionStatus::kReceiverNotReady;
    GiveBackSends();
  }
}

void SoftQueuePair::WatchLanes() {
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (lane->id != 0) completions_->WatchLane(lane.get());
  }
}

bool SoftQueuePair::SetActive(bool active) {
  if (active == active_) return false;
  active_ = active;
  for_answers_.Restart();
  for_connections_.Restart();
  for_receives_.Restart();
  return true;
}

int64_t SoftQueuePair::next_timer_ns(int64_t now_ns) const {
  if (state_ != QueuePairState::kReady) return Patience::kForEver;
  int64_t at_ns = Patience::kForEver;
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (dialler_ && !hanging_up_ && lane->state == SoftLane::State::kIdle) {
      at_ns = std::min(at_ns, lane->redial_at_ns);
    }
  }
  if (WaitsForPeer()) at_ns = std::min(at_ns, for_answers_.next_ns(now_ns));
  if (Unreachable()) at_ns = std::min(at_ns, for_connections_.next_ns(now_ns));
  if (starved_) at_ns = std::min(at_ns, for_receives_.next_ns(now_ns));
  return at_ns;
}

}  // namespace tryst
