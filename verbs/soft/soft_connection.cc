#include "verbs/soft/soft_connection.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tryst {
namespace {

constexpr int64_t kFirstRedialNs = 1'000'000;
constexpr int64_t kLastRedialNs = 100'000'000;
// So soon a dial is given up where the peer has another address, since one of the networks may be
// down: three of them fit into the time that a queue pair has.
constexpr int64_t kMostDialNs = 140'000'000;
// The first lane receives many small frames in one call.
constexpr size_t kFirstStagingBytes = SoftStaging::kBytes;
constexpr size_t kLaterStagingBytes = 1 << 10;

}  // namespace

SoftConnection::SoftConnection(SoftShared* shared) : shared_(shared) {
  for (int i = 0; i < shared->context->options.sockets_per_queue_pair; ++i) {
    lanes_.push_back(std::make_unique<SoftLane>());
    lanes_.back()->owner = shared->queue_pair;
    lanes_.back()->index = i;
    lanes_.back()->capacity = i == 0 ? kFirstStagingBytes : kLaterStagingBytes;
  }
}

absl::Status SoftConnection::Connect(absl::string_view remote_address) {
  if (state_ != QueuePairState::kReset) {
    return absl::FailedPreconditionError("a queue pair can be connected only once");
  }
  absl::StatusOr<SoftAddress> peer =
      DecodeSoftAddress(remote_address, shared_->context->options.secret);
  if (!peer.ok()) return peer.status();
  if (shared_->context->options.pipes == nullptr) {
    absl::StatusOr<std::vector<SocketAddress>> all = SocketAddress::ParseAll(peer->listener);
    if (!all.ok()) return all.status();
    peer_listeners_ = *std::move(all);
  }
  if (peer->tls != (shared_->context->tls != nullptr)) {
    return absl::InvalidArgumentError(
        "one worker uses TLS and the other does not: set encrypt alike on both, or find out who "
        "between them changes an address");
  }
  if (peer->token == shared_->token) {
    return absl::InvalidArgumentError("a queue pair cannot connect to itself");
  }
  peer_ = *std::move(peer);
  // Both sides know both tokens, so they agree on which one dials.
  dialler_ = shared_->token < peer_.token;
  state_ = QueuePairState::kReady;
  shared_->waits.NoteMoved();
  const size_t lanes = std::min<size_t>(lanes_.size(), peer_.sockets);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    SoftLane* const lane = lanes_[i].get();
    const bool held = lane->state == SoftLane::State::kHeld;
    if (held && (dialler_ || i >= lanes)) Drop(lane);
  }
  lanes_.resize(lanes);
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (dialler_ && Wants(*lane)) {
      Dial(lane.get());
    } else if (lane->state == SoftLane::State::kHeld) {
      Answer(lane.get());
    }
  }
  return absl::OkStatus();
}

SoftStream SoftConnection::NewStream(const SoftLane& lane) {
  if (SoftPipes* const pipes = shared_->context->options.pipes.get(); pipes != nullptr) {
    return SoftStream(pipes->Dial(peer_.listener));
  }
  SoftTls* const tls = shared_->context->tls.get();
  // The first lane goes over the first network that is up; the others have one each, and come back
  // with it.
  const size_t turn = lane.index == 0 ? lane.dials : static_cast<size_t>(lane.index) - 1;
  const size_t which = turn % peer_listeners_.size();
  const std::vector<SocketAddress>& ours = shared_->context->addresses;
  const bool paired = ours.size() > 1 && ours.size() == peer_listeners_.size();
  Fd fd = peer_listeners_[which].Dial(paired ? &ours[which] : nullptr);
  std::unique_ptr<SoftTlsSession> session;
  if (tls != nullptr && fd.valid()) session = tls->Dial(fd.get(), peer_.number, peer_.token);
  if (!fd.valid() || (tls != nullptr && session == nullptr)) return SoftStream();
  return SoftStream(std::move(fd), std::move(session));
}

void SoftConnection::Dial(SoftLane* lane) {
  lane->stream = NewStream(*lane);
  lane->stream.set_keep(shared_->options.keep);
  if (!lane->stream.valid()) return RetryDial(lane);
  lane->state = SoftLane::State::kDialling;
  lane->dialled_at_ns = shared_->context->clock->NowNs();
  shared_->completions->AddLane(lane);
}

int64_t SoftConnection::DialEndsNs(const SoftLane& lane) const {
  const bool dials =
      lane.state == SoftLane::State::kDialling || lane.state == SoftLane::State::kGreeted;
  return dials && peer_listeners_.size() > 1 ? lane.dialled_at_ns + kMostDialNs
                                             : std::numeric_limits<int64_t>::max();
}

void SoftConnection::RetryDial(SoftLane* lane) {
  Drop(lane);
  ++lane->dials;
  lane->redial_after_ns =
      std::min(std::max(lane->redial_after_ns * 2, kFirstRedialNs), kLastRedialNs);
  lane->redial_at_ns = shared_->context->clock->NowNs() + lane->redial_after_ns;
}

SoftHello SoftConnection::NewHello(const SoftLane& lane) {
  SoftHello hello;
  hello.token = peer_.token;
  hello.to_number = peer_.number;
  hello.from_number = shared_->number;
  hello.socket = static_cast<uint8_t>(lane.index);
  hello.sockets = static_cast<uint8_t>(lanes_.size());
  hello.receives =
      lane.index == 0 ? shared_->progress.AnnounceReceives() : shared_->receives.posted();
  return hello;
}

bool SoftConnection::Serve(SoftLane* lane) {
  const SoftLane::State state = lane->state;
  if (state == SoftLane::State::kDialling) SendHello(lane);
  if (state == SoftLane::State::kHeld) DropIfClosed(lane);
  return state == SoftLane::State::kGreeted || state == SoftLane::State::kUp;
}

void SoftConnection::SendHello(SoftLane* lane) {
  uint8_t bytes[kHelloBytes];
  EncodeHello(NewHello(*lane), bytes);
  const ssize_t sent = lane->stream.Send(bytes, sizeof(bytes));
  if (sent < 0 && errno == EAGAIN) return;
  if (sent != sizeof(bytes) || lane->stream.HasUnsent()) {
    RetryDial(lane);
    return;
  }
  lane->state = SoftLane::State::kGreeted;
  shared_->completions->WatchLane(lane);
}

bool SoftConnection::TakeHello(SoftLane* lane, const uint8_t* bytes) {
  SoftHello hello;
  if (!DecodeHello(bytes, &hello) || !TokensEqual(hello.token, shared_->token) ||
      hello.to_number != shared_->number || hello.from_number != peer_.number ||
      hello.socket != lane->index || hello.sockets != lanes_.size()) {
    // Another process has the peer's port.
    shared_->context->tokens_refused.fetch_add(1);
    RetryDial(lane);
    return false;
  }
  Raise(lane, hello);
  return true;
}

bool SoftConnection::Adopt(const SoftHello& hello, SoftStream* stream) {
  if (!TokensEqual(hello.token, shared_->token) || state_ == QueuePairState::kBroken) return false;
  if (hello.socket >= lanes_.size()) return false;
  SoftLane* const lane = lanes_[hello.socket].get();
  if (lane->state != SoftLane::State::kIdle) return false;
  if (ready() && !Expects(hello)) return false;
  lane->stream = std::move(*stream);
  lane->stream.set_keep(shared_->options.keep);
  lane->hello = hello;
  lane->state = SoftLane::State::kHeld;
  shared_->completions->AddLane(lane);
  if (ready()) Answer(lane);
  return true;
}

bool SoftConnection::Expects(const SoftHello& hello) const {
  return !dialler_ && !hanging_up_ && hello.from_number == peer_.number &&
         hello.sockets == lanes_.size();
}

// Handles the held socket's hello, now that we know our peer.
void SoftConnection::Answer(SoftLane* lane) {
  if (!Expects(lane->hello)) {
    shared_->context->tokens_refused.fetch_add(1);
    Drop(lane);
    return;
  }
  uint8_t bytes[kHelloBytes];
  EncodeHello(NewHello(*lane), bytes);
  if (lane->stream.Send(bytes, sizeof(bytes)) != sizeof(bytes) || lane->stream.HasUnsent()) {
    Drop(lane);  // The peer, if it was the one, dials again.
    return;
  }
  Raise(lane, lane->hello);
}

// The peer may give up while we do not know it yet.
void SoftConnection::DropIfClosed(SoftLane* held) {
  if (!held->stream.Quiet()) Drop(held);
}

void SoftConnection::Raise(SoftLane* lane, const SoftHello& hello) {
  lane->state = SoftLane::State::kUp;
  lane->redial_after_ns = 0;
  shared_->waits.NoteMoved();
  if (has_flows()) {
    // Its bytes may be the only ones that do not come, which nobody else sees. Twice: a peer that
    // has much to do does not read.
    const int64_t silence_ms = SoftWaits::PeerBudgetNs(shared_->options) / 500'000;
    EndWhenSilent(lane->stream.fd(), static_cast<int>(std::min<int64_t>(silence_ms, INT_MAX)));
    if (lane->index != 0) HoldUnsent(lane->stream.fd(), lane->pace.unsent_bytes());
  }
  if (lane->index != 0) return;
  shared_->progress.TakeHello(hello.receives);
  shared_->OweAckIfCreditIsDue();
}

void SoftConnection::Drop(SoftLane* lane) {
  lane->Recall();
  if (lane->id != 0) shared_->completions->RemoveLane(lane);
  lane->stream.Close();
  lane->state = SoftLane::State::kIdle;
  lane->full = false;
  lane->parked = false;
  lane->GiveBackStaging(shared_->completions->stagings());
  lane->GiveBackBatch(shared_->completions->batches());
}

bool SoftConnection::Redials(const SoftLane& lane) const {
  return dialler_ && !hanging_up_ && lane.state == SoftLane::State::kIdle && Wants(lane);
}

void SoftConnection::RedialWhatIsDue(int64_t now_ns) {
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (now_ns >= DialEndsNs(*lane)) RetryDial(lane.get());
    if (Redials(*lane) && now_ns >= lane->redial_at_ns) Dial(lane.get());
  }
}

int64_t SoftConnection::next_redial_ns() const {
  int64_t at_ns = std::numeric_limits<int64_t>::max();
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    at_ns = std::min(at_ns, Redials(*lane) ? lane->redial_at_ns : DialEndsNs(*lane));
  }
  return at_ns;
}

bool SoftConnection::Unreachable() const {
  if (!dialler_ || hanging_up_) return false;
  // Without the later lanes large messages go on the first.
  const SoftLane::State state = first()->state;
  return state == SoftLane::State::kIdle || state == SoftLane::State::kDialling;
}

int SoftConnection::later_up() const {
  return static_cast<int>(
      std::count_if(lanes_.begin() + 1, lanes_.end(),
                    [](const std::unique_ptr<SoftLane>& lane) { return lane->up(); }));
}

int SoftConnection::carriers() const {
  return has_no_crew() || !shared_->context->options.crew->helps() ? 0 : later_up();
}

bool SoftConnection::has_no_crew() const {
  const Crew* const crew = shared_->context->options.crew.get();
  return crew == nullptr || crew->most_threads() == 0;
}

bool SoftConnection::AnyBatch() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const std::unique_ptr<SoftLane>& lane) { return lane->out != nullptr; });
}

void SoftConnection::WatchLanes() {
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (lane->id != 0) shared_->completions->WatchLane(lane.get());
  }
}

std::string SoftConnection::Networks() const {
  std::map<std::string, int> sockets;
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    if (!has_flows() || !lane->up()) continue;
    const absl::StatusOr<SocketAddress> self = SocketAddress::Of(lane->stream.fd());
    if (self.ok()) ++sockets[self->host()];
  }
  std::vector<std::string> parts;
  for (const auto& network : sockets) {
    parts.push_back(
        absl::StrCat(network.second, parts.empty() ? " sockets" : "", " by ", network.first));
  }
  return absl::StrJoin(parts, ", ");
}

void SoftConnection::HangUp(SoftLane* lost) {
  Drop(lost);
  hanging_up_ = true;
  first()->stream.EndSending();
}

void SoftConnection::Break() {
  state_ = QueuePairState::kBroken;
  for (const std::unique_ptr<SoftLane>& lane : lanes_) {
    lane->Unpin(&shared_->context->regions);
    Drop(lane.get());
  }
}

}  // namespace tryst
