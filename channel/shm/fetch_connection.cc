#include <poll.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "channel/shm/fetch_channel.h"

// The connection of a ShmFetchChannel: hello, knock, welcome, end.
namespace tryst {

using shm_wire::Packet;
using shm_wire::PacketType;

namespace {

constexpr uint64_t ShmFetchCounters::*kCounters[] = {
    &ShmFetchCounters::fetches,       &ShmFetchCounters::ended_ok,
    &ShmFetchCounters::ended_failed,  &ShmFetchCounters::cancels_sent,
    &ShmFetchCounters::replays,       &ShmFetchCounters::moved,
    &ShmFetchCounters::parked,        &ShmFetchCounters::bytes,
    &ShmFetchCounters::in_cells,      &ShmFetchCounters::by_reference,
    &ShmFetchCounters::copied,        &ShmFetchCounters::pulled,
    &ShmFetchCounters::in_parts,      &ShmFetchCounters::links,
    &ShmFetchCounters::breaks,        &ShmFetchCounters::asked_again,
    &ShmFetchCounters::digests_wrong, &ShmFetchCounters::messages,
};
static_assert(sizeof(ShmFetchCounters) == sizeof(uint64_t) * std::size(kCounters),
              "one is missing");

FetchOpsOptions OpsOptions(const ShmFetchOptions& options) {
  FetchOpsOptions ops;
  ops.peer = options.peer;
  ops.path = "shm";
  ops.trace = options.trace;
  ops.max_key_bytes = shm_wire::kMaxKeyBytes;
  ops.max_keys = shm_wire::kMaxKeys;
  ops.max_keys_bytes = shm_wire::kKeysLapBytes;
  ops.max_parked = std::min(options.max_waiting, shm_wire::kMaxParked);
  ops.leave_ns = options.leave_ms * 1'000'000;
  ops.max_tensor_bytes = options.max_tensor_bytes;
  return ops;
}

}  // namespace

ShmFetchCounters& ShmFetchCounters::operator+=(const ShmFetchCounters& other) {
  for (uint64_t ShmFetchCounters::*field : kCounters) this->*field += other.*field;
  return *this;
}

ShmFetchChannel::ShmFetchChannel(ShmHub* hub, Bootstrap* bootstrap, ShmFetchOptions options)
    : FetchOps(hub->poller(), OpsOptions(options), &counters_),
      hub_(hub),
      bootstrap_(bootstrap),
      options_(std::move(options)),
      back_off_(options_.backoff_ms, options_.backoff_ms_most, options_.seed),
      connect_timer_(this, &ShmFetchChannel::OnConnectTimer),
      patience_timer_(this, &ShmFetchChannel::OnPatienceTimer),
      watch_(hub->poller(), this, options_.patience_ms),
      small_(new SmallStorage()) {}

ShmFetchChannel::~ShmFetchChannel() {
  TRYST_CHECK(Drained()) << Explain();
  poller_->ForgetFlush(this);
  small_->Unref();
}

void ShmFetchChannel::SetState(State state) {
  state_ = state;
  open_ = state == State::kOpen;
  state_since_ns_ = now_ns();
}

void ShmFetchChannel::Connect() {
  SetState(State::kHello);
  answered_ = false;
  attempt_ns_ = now_ns();
  ++epoch_;
  shm_wire::Offer offer;
  offer.boot_id = hub_->host().boot_id;
  offer.network_space = hub_->host().network_space;
  offer.sizes = options_.sizes;
  offer.digests = options_.digests;
  Hello hello;
  hello.worker = options_.self;
  hello.incarnation = options_.self_incarnation;
  hello.epoch = epoch_;
  hello.path = "shm";
  hello.parameters = shm_wire::EncodeOffer(offer);
  ++hellos_out_;
  bootstrap_->Exchange(
      options_.peer, hello,
      Deadline::After(poller_->clock(), absl::Milliseconds(options_.hello_timeout_ms)),
      [this, epoch = epoch_](absl::StatusOr<Hello> answer) {
        poller_->PostFn([this, epoch, answer = std::move(answer)]() mutable {
          OnHelloAnswer(epoch, std::move(answer));
        });
      });
}

void ShmFetchChannel::Probe() {
  if (state_ == State::kIdle || state_ == State::kBackoff) {
    poller_->CancelTimer(&connect_timer_);
    Connect();
  }
}

void ShmFetchChannel::OnHelloAnswer(uint64_t epoch, absl::StatusOr<Hello> answer) {
  --hellos_out_;
  if (state_ != State::kHello || epoch != epoch_) return;
  // It is up where it has no room for us, too.
  answered_ = answer.ok() || absl::IsResourceExhausted(answer.status());
  const absl::Status joined = answer.ok() ? Join(*answer) : answer.status();
  if (!joined.ok()) FailConnect(joined);
}

absl::Status ShmFetchChannel::Join(const Hello& answer) {
  if (answer.incarnation == 0 || answer.epoch != epoch_ || answer.path != "shm") {
    return absl::DataLossError("the peer answered another hello than ours");
  }
  auto invitation = shm_wire::DecodeInvitation(answer.parameters);
  if (!invitation.ok()) return invitation.status();
  auto socket = LocalSocket::Connect(invitation->socket);
  if (!socket.ok()) return socket.status();
  socket_ = *std::move(socket);
  Packet packet;
  packet.type = PacketType::kJoin;
  packet.token = invitation->token;
  if (!socket_->Send(packet)) {
    socket_.reset();
    return absl::UnavailableError("the producer's local socket does not take our token");
  }
  hub_->Watch(socket_->fd(), this);
  if (peer_incarnation_ != answer.incarnation) {
    EndAskedOf(std::exchange(peer_incarnation_, answer.incarnation));
    keys_.ForgetIds();  // Those of an earlier life are never asked for again.
  }
  gone_incarnation_ = 0;
  SetState(State::kJoining);
  poller_->SetTimer(&connect_timer_, now_ns() + options_.join_timeout_ms * 1'000'000);
  return absl::OkStatus();
}

// An attempt has failed: another one later, or no more.
void ShmFetchChannel::FailConnect(const absl::Status& why) {
  DropLink();
  connect_status_ = why;
  RetryLater();
  if (gone_incarnation_ != 0 && absl::IsUnavailable(why)) {
    EndWaiting(absl::UnavailableError(
                   absl::StrFormat("%s, incarnation %016x, has ended and nobody answers for it: %s",
                                   options_.peer, gone_incarnation_, why.message())),
               [this](const FetchOp& op) { return op.key.src_incarnation() == gone_incarnation_; });
  }
  if (IsFinal(why)) {
    // Fail refused fetches now, not at their deadline.
    for (FetchOp* op : pool_.all()) EndEarly(op, why);
  } else if (IsPathRefusal(why) && options_.on_refused) {
    options_.on_refused();
  } else if (Unusable()) {
    unusable_since_ns_ = -1;
    options_.on_left(TakeWaiting());
  }
}

// That its hellos are answered shows that it is the path that fails and not the producer. Nothing
// is asked for now, and an answer to a hello says that all that was is back in its place.
bool ShmFetchChannel::Unusable() {
  if (options_.give_up_ms == 0) return false;
  if (!answered_ || pool_.live() == 0) {
    unusable_since_ns_ = -1;
    return false;
  }
  if (unusable_since_ns_ < 0) unusable_since_ns_ = attempt_ns_;
  return now_ns() - unusable_since_ns_ >= options_.give_up_ms * 1'000'000;
}

void ShmFetchChannel::RetryLater() {
  SetState(State::kBackoff);
  poller_->SetTimer(&connect_timer_, now_ns() + back_off_.NextNs());
}

void ShmFetchChannel::OnConnectTimer() {
  if (state_ == State::kJoining) {
    return FailConnect(absl::UnavailableError("the producer has not welcomed us in time"));
  }
  if (state_ != State::kBackoff) return;
  if (pool_.live() > 0) return Connect();
  SetState(State::kIdle);
}

// ---- Patience ----

void ShmFetchChannel::WaitPatiently(int64_t since_ns) {
  if (patience_timer_.is_set()) return;
  poller_->SetTimer(&patience_timer_, since_ns + options_.patience_ms * 1'000'000);
}

void ShmFetchChannel::OnPatienceTimer() {
  if (state_ == State::kOpen || state_ == State::kClosed) return;
  const int64_t patience_ns = options_.patience_ms * 1'000'000;
  const auto since_ns = [this](const FetchOp& op) { return std::max(op.begun_ns, lost_ns_); };
  EndWaiting(absl::UnavailableError(absl::StrCat(options_.peer, " has not been reached for ",
                                                 options_.patience_ms,
                                                 " ms (patience): ", connect_status_.message())),
             [&](const FetchOp& op) { return now_ns() - since_ns(op) >= patience_ns; });
  int64_t oldest_ns = INT64_MAX;
  for (const FetchOp* op : pool_.all()) {
    if (op->state == FetchState::kQueued) oldest_ns = std::min(oldest_ns, since_ns(*op));
  }
  if (oldest_ns != INT64_MAX) WaitPatiently(oldest_ns);
}

// Ends those in line that `which` says.
void ShmFetchChannel::EndWaiting(const absl::Status& why,
                                 absl::FunctionRef<bool(const FetchOp&)> which) {
  for (FetchOp* op : pool_.all()) {
    if (op->state == FetchState::kQueued && which(*op)) EndEarly(op, why);
  }
}

void ShmFetchChannel::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && socket_ != nullptr; ++i) {
    if (HearPacket()) continue;
    pollfd process = {producer_process_.get(), POLLIN, 0};
    if (process.fd >= 0 && poll(&process, 1, 0) == 1) OnProducerGone();
    return;
  }
}

bool ShmFetchChannel::HearPacket() {
  const absl::StatusOr<LocalSocket::Received> received = ReadPacket();
  if (!received.ok()) {
    if (state_ == State::kJoining) {
      FailConnect(received.status());
    } else {
      Break(received.status());
    }
    return false;
  }
  if (*received == LocalSocket::Received::kEnd) OnProducerGone();
  return *received == LocalSocket::Received::kPacket;
}

absl::StatusOr<LocalSocket::Received> ShmFetchChannel::ReadPacket() {
  Packet packet;
  OwnedFd fd;
  const LocalSocket::Received received = socket_->Receive(&packet, &fd);
  if (received == LocalSocket::Received::kPacket) {
    const absl::Status understood = OnPacket(packet, std::move(fd));
    if (!understood.ok()) return understood;
  }
  return received;
}

absl::Status ShmFetchChannel::OnPacket(const Packet& packet, OwnedFd fd) {
  if (packet.type == PacketType::kWake) return absl::OkStatus();
  if (packet.type == PacketType::kWelcome && state_ == State::kJoining) {
    return OnWelcome(packet, std::move(fd));
  }
  if (packet.type == PacketType::kSegment && state_ == State::kOpen) {
    return held_->AddSegment(packet, std::move(fd));
  }
  return absl::DataLossError("the producer said what is not its turn to say");
}

absl::Status ShmFetchChannel::OnWelcome(const Packet& packet, OwnedFd fd) {
  const shm_wire::LinkSizes& sizes = packet.sizes;
  const absl::Status good = shm_wire::CheckSizes(sizes);
  if (!good.ok()) return good;
  if (sizes.cells > options_.sizes.cells || sizes.slots > options_.sizes.slots ||
      sizes.references > options_.sizes.references) {
    return absl::DataLossError("the producer made more of the link than was asked for");
  }
  auto memory = SharedMemory::Map(std::move(fd), SharedMemory::Rounded(shm_wire::LinkBytes(sizes)),
                                  /*writable=*/true);
  if (!memory.ok()) return memory.status();
  held_ = new HeldReferences(socket_, *std::move(memory), sizes, hub_->arena()->peer_watcher());
  const shm_wire::LinkView& view = held_->view();
  counters_.messages += requests_.written();
  requests_ = RingWriter<shm_wire::kRequestCellBytes>(view.requests, sizes.cells,
                                                      &view.header->requests_read);
  replies_ =
      RingReader<shm_wire::kReplyCellBytes>(view.replies, sizes.cells, &view.header->replies_read);
  peer_memory_ =
      PeerMemory::Probe(options_.allow_pull && packet.probe_address != 0 ? socket_->peer_pid() : 0,
                        packet.probe_address, packet.probe, sizeof(packet.probe));
  link_version_ = std::min(packet.version, options_.link_newest);
  Packet ready;
  ready.type = PacketType::kReady;
  ready.version = link_version_;
  ready.pulls = peer_memory_->status().ok() ? 1 : 0;
  FillSecret(ready.token.data(), sizeof(view.header->proof));
  memcpy(view.header->proof, ready.token.data(), sizeof(view.header->proof));
  memcpy(&link_number_, ready.token.data(), sizeof(link_number_));
  if (!socket_->Send(ready)) return absl::UnavailableError("the producer has gone meanwhile");
  producer_process_ = socket_->WatchPeer();
  if (producer_process_.valid()) hub_->Watch(producer_process_.get(), this);

  slots_.Reset(sizes.slots);
  refused_.assign(sizes.slots, 0);
  parks_ = link_version_ >= shm_wire::kLinkParks;
  in_failed_text_ = false;
  accepted_told_ = 0;
  poller_->CancelTimer(&connect_timer_);
  poller_->CancelTimer(&patience_timer_);
  hub_->AddLink(this);
  SetState(State::kOpen);
  unusable_since_ns_ = -1;
  connect_status_ = absl::OkStatus();
  ++counters_.links;
  if (options_.on_open) options_.on_open();
  FlushSoon();
  if (pool_.live() > 0) watch_.Watch();
  return absl::OkStatus();
}

bool ShmFetchChannel::Watched(uint32_t* cells) const {
  *cells = replies_.taken();
  return state_ == State::kOpen && pool_.live() > 0 && link_version_ >= shm_wire::kLinkParks;
}

void ShmFetchChannel::AskForSign() {
  words_.push_back({shm_wire::CellType::kPing, 0, 0, 0});
  FlushSoon();
}

void ShmFetchChannel::OnSilent(int64_t silent_ms) {
  Break(absl::UnavailableError(
            absl::StrCat(options_.peer, " has been silent over shm for ", silent_ms,
                         " ms (patience): its process lives, and is stopped or hangs")),
        Then::kEndThem);
}

// What it had answered before its end is in the ring and counts.
void ShmFetchChannel::OnProducerGone() {
  if (state_ == State::kJoining) {
    return FailConnect(absl::UnavailableError("the producer did not accept our token"));
  }
  if (state_ != State::kOpen) return;
  for (int i = 0; i < kTurnsAfterEnd && state_ == State::kOpen && replies_.Ready(); ++i) PollLink();
  if (state_ != State::kOpen) return;
  // The kernel ends the socket of a process that is gone, who has said nothing before it.
  const shm_wire::LinkHeader& header = *held_->view().header;
  const bool settles = link_version_ >= shm_wire::kLinkSettles;
  const bool waits = settles && header.producer_left.load(std::memory_order_acquire) != 0 &&
                     header.settlement.load(std::memory_order_acquire) != shm_wire::kNotKept;
  while (state_ == State::kOpen && !copies_.empty()) {
    if (copies_.front()->pulls && settles && !waits) {
      copies_.pop_front();  // Whose memory it would read now, nobody knows.
    } else {
      RunCopy();
    }
  }
  if (state_ != State::kOpen) return;
  if (waits) {
    return Break(absl::UnavailableError(
        absl::StrCat(options_.peer, " has ended the link and waits for another")));
  }
  gone_incarnation_ = peer_incarnation_;
  Break(
      absl::UnavailableError(absl::StrFormat(
          "%s, incarnation %016x, has ended its shared memory: its process is gone or is stopping",
          options_.peer, peer_incarnation_)),
      Then::kEndThem);
}

void ShmFetchChannel::Break(const absl::Status& why, Then then) {
  if (state_ != State::kOpen) return;
  ++counters_.breaks;
  if (absl::IsDataLoss(why)) {
    TRYST_LOG(Error) << options_.self << " ends the shared memory with " << options_.peer << ": "
                     << why.message();
  } else if (pool_.live() > 0) {
    TRYST_LOG(Warning) << options_.self << " no longer shares memory with " << options_.peer << ": "
                       << why.message();
  }
  if (!Settle() && then == Then::kAskAgain) then = Then::kEndThem;
  EndLink(why, then);
}

// Writes down what was accepted, for the producer, which keeps the rest until it has read it.
// False: it does not, or no longer; then nothing may be asked again.
bool ShmFetchChannel::Settle() {
  if (link_version_ < shm_wire::kLinkSettles) return false;
  shm_wire::LinkHeader* header = held_->view().header;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const uint32_t next = slots_.generation(slot);
    if (refused_[slot] == next) continue;  // At first: none was accepted.
    SetAccepted(static_cast<uint16_t>(slot), next - 1, header);
  }
  uint32_t expected = shm_wire::kNotSettled;
  return header->settlement.compare_exchange_strong(expected, shm_wire::kSettled);
}

void ShmFetchChannel::EndLink(const absl::Status& why, Then then) {
  SetState(State::kIdle);
  lost_ns_ = now_ns();
  connect_status_ = why;
  DropLink();
  words_.clear();
  copies_.clear();
  const std::vector<FetchOp*> asked = Asked();
  ForgetWords();
  // From the last to the first, so that they stand in their order before those who were in line.
  for (auto at = asked.rbegin(); at != asked.rend(); ++at) Unlink(*at);
  for (FetchOp* op : asked) {
    const bool for_next_life =
        op->key.src_incarnation() != 0 && op->key.src_incarnation() != peer_incarnation_;
    const bool again = (then == Then::kAskAgain || (then == Then::kEndThem && for_next_life)) &&
                       Own(op)->misanswered < kMisansweredMost;
    if (op->state == FetchState::kLeaving) {
      LastWord(op);
      Report(op, op->end_status, Tensor(), false, When::kAtEndOfTurn);
    } else if (!again) {
      EndEarly(op, why);
    } else {
      op->asked_before = true;
      ++counters_.asked_again;
    }
  }
  slots_.Reset(0);
  if (!FetchOps::queued_.empty()) WaitPatiently(lost_ns_);
  if (pool_.live() == 0 || then == Then::kEndAll) return;
  // One that has brought nothing is not made again at once.
  if (then != Then::kAskAgain) {
    back_off_.Reset();
  } else if (!back_off_.TakeFree()) {
    return RetryLater();
  }
  Connect();
}

// It has neither slot nor ticket any more.
void ShmFetchChannel::Unlink(FetchOp* op) {
  DropMemory(op);
  DropTicket(op);
  op->park_asked = false;
  if (Advance(op, FetchEvent::kUnlinked) != FetchAction::kAskAgain) return;
  if (op->has_slot) slots_.Free(op);
  op->span.Enter(WaitsFor::kConnection, now_ns());
  FetchOps::queued_.PushFront(op);
}

// What was asked of an earlier life of the producer can no longer be had from it. But who has
// heard of this one before us, and asked for what is its, asked it of a link to nobody.
void ShmFetchChannel::EndAskedOf(uint64_t former_incarnation) {
  EndWaiting(Restarted(options_.peer, former_incarnation, peer_incarnation_),
             [&](const FetchOp& op) {
               const uint64_t named = op.key.src_incarnation();
               return (op.asked_before && named != peer_incarnation_) ||
                      (named != 0 && named == former_incarnation);
             });
  for (FetchOp* op : pool_.all()) {
    if (op->state == FetchState::kQueued) op->asked_before = false;
  }
}

// Views that are held keep the socket and the memory; the producer hears that nothing more
// is asked, and knows by the end of the socket that the last view has gone.
void ShmFetchChannel::DropLink() {
  poller_->CancelTimer(&connect_timer_);
  watch_.Stop();
  if (socket_ == nullptr) return;
  if (producer_process_.valid()) hub_->Unwatch(producer_process_.get());
  producer_process_ = OwnedFd();
  hub_->Unwatch(socket_->fd());
  if (state_ != State::kJoining) {
    Packet packet;
    packet.type = PacketType::kLeave;
    socket_->Send(packet);
  }
  if (held_ != nullptr) {
    hub_->RemoveLink(this);
    std::exchange(held_, nullptr)->Unref();
  }
  peer_memory_.reset();
  socket_.reset();
}

void ShmFetchChannel::Close(absl::Status why) {
  if (state_ == State::kClosed) return;
  closed_ = std::move(why);
  Break(closed_, Then::kEndAll);
  DropLink();
  poller_->CancelTimer(&patience_timer_);
  SetState(State::kClosed);
  for (FetchOp* op : pool_.all()) EndEarly(op, closed_);
}

bool ShmFetchChannel::Drained() const {
  return state_ == State::kClosed && hellos_out_ == 0 && pool_.live() == 0 && deliveries_.idle();
}

const char* ShmFetchChannel::state_text() const {
  switch (state_) {
    case State::kIdle:
      return "idle, connects at the next fetch";
    case State::kHello:
      return "waits for the answer to its hello";
    case State::kJoining:
      return "waits to be welcomed on the local socket";
    case State::kOpen:
      return "connected (same host, proved by a memory that both see)";
    case State::kBackoff:
      return "pauses before it connects again";
    case State::kClosed:
      return "closed";
  }
  return "";
}

std::string ShmFetchChannel::Explain() const {
  std::string pull;
  if (peer_memory_ != nullptr) {
    pull = peer_memory_->status().ok() ? ", reads its memory"
                                       : absl::StrCat(", does not read its memory (",
                                                      peer_memory_->status().message(), ")");
  }
  return absl::StrCat(options_.peer, " over shm: ", state_text(), " since ",
                      (now_ns() - state_since_ns_) / 1'000'000, " ms, epoch ", epoch_, pull, ", ",
                      CountsByState(),
                      connect_status_.ok() ? "" : absl::StrCat("; ", connect_status_.ToString()));
}

}  // namespace tryst
