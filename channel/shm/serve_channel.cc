#include "channel/shm/serve_channel.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/shm/same_host.h"

// The connection. serve_requests.cc has what the consumer says and what becomes of it,
// serve_answers.cc the answers.
namespace tryst {

using shm_wire::Packet;
using shm_wire::PacketType;

ShmServeCounters& ShmServeCounters::operator+=(const ShmServeCounters& other) {
  requests += other.requests;
  in_cells += other.in_cells;
  by_reference += other.by_reference;
  staged += other.staged;
  pulled += other.pulled;
  in_parts += other.in_parts;
  failed += other.failed;
  cancelled += other.cancelled;
  given_back += other.given_back;
  bytes += other.bytes;
  messages += other.messages;
  return *this;
}

ShmServeChannel::ShmServeChannel(ShmHub* hub, TensorSource* source, ShmServeOptions options,
                                 const Hello& consumer, const shm_wire::Offer& offer)
    : hub_(hub),
      source_(source),
      options_(std::move(options)),
      consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      epoch_(consumer.epoch),
      track_(options_.trace == nullptr
                 ? nullptr
                 : options_.trace->Track(TraceRole::kServe, consumer_, "shm")),
      digests_(options_.digests || offer.digests),
      since_ns_(hub->poller()->now_ns()),
      takes_(hub->poller(), source, this, consumer_, shm_wire::kMaxParked, &counters_.given_back) {
  sizes_.cells = std::min(offer.sizes.cells, options_.most.cells);
  sizes_.slots = std::min(offer.sizes.slots, options_.most.slots);
  sizes_.references = std::min(offer.sizes.references, options_.most.references);
}

ShmServeChannel::~ShmServeChannel() {
  TRYST_CHECK(Drained()) << Explain();
  hub_->poller()->ForgetFlush(this);
}

// ---- Connection ----

absl::StatusOr<Hello> ShmServeChannel::Invite() {
  auto invitation = hub_->Invite(this);
  if (!invitation.ok()) return invitation.status();
  Hello answer;
  answer.worker = options_.self;
  answer.incarnation = options_.self_incarnation;
  answer.epoch = epoch_;
  answer.path = "shm";
  answer.parameters = shm_wire::EncodeInvitation(*invitation);
  return answer;
}

void ShmServeChannel::OnGuest(std::unique_ptr<LocalSocket> socket) {
  socket_ = std::move(socket);
  apart_ = options_.apart || IsAnotherUser(socket_->peer_user(), geteuid());
  const absl::Status welcomed = Welcome();
  if (!welcomed.ok()) End(welcomed, Ending::kForGood);
}

absl::Status ShmServeChannel::Welcome() {
  auto memory =
      SharedMemory::Create(shm_wire::LinkBytes(sizes_), SharedMemory::Writers::kEverybody);
  if (!memory.ok()) return memory.status();
  const int fd = (*memory)->fd();
  given_ = std::make_shared<GivenReferences>(socket_, *std::move(memory), sizes_);
  const shm_wire::LinkView& view = given_->view();
  requests_ = RingReader<shm_wire::kRequestCellBytes>(view.requests, sizes_.cells,
                                                      &view.header->requests_read);
  replies_ =
      RingWriter<shm_wire::kReplyCellBytes>(view.replies, sizes_.cells, &view.header->replies_read);
  FillSecret(proof_.data(), proof_.size());
  Packet packet;
  packet.type = PacketType::kWelcome;
  packet.version = options_.link_newest;
  packet.sizes = sizes_;
  packet.digests = digests_ ? 1 : 0;
  packet.probe_address =
      options_.allow_pull ? static_cast<uint64_t>(reinterpret_cast<uintptr_t>(proof_.data())) : 0;
  memcpy(packet.probe, proof_.data(), sizeof(packet.probe));
  if (!socket_->Send(packet, fd)) return absl::UnavailableError("the consumer has gone already");
  hub_->Watch(socket_->fd(), this);
  state_ = State::kWelcome;
  return absl::OkStatus();
}

// What is left is heard in the next look: nobody keeps us by talking.
void ShmServeChannel::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && HearPacket(); ++i) {
  }
}

bool ShmServeChannel::HearPacket() {
  Packet packet;
  OwnedFd unwanted;
  switch (socket_->Receive(&packet, &unwanted)) {
    case LocalSocket::Received::kNothing:
      return false;
    case LocalSocket::Received::kEnd:
      End(absl::UnavailableError("the consumer has gone"), Ending::kConsumerGone);
      return false;
    case LocalSocket::Received::kPacket:
      break;
  }
  absl::Status understood;
  if (packet.type == PacketType::kReady && state_ == State::kWelcome) {
    understood = OnReady(packet);
  } else if (packet.type == PacketType::kLeave) {
    OnLeave();
  } else if (packet.type != PacketType::kWake && state_ != State::kSettling) {
    understood = absl::DataLossError("the consumer said what is not its turn to say");
  }
  if (!understood.ok()) End(understood, Ending::kOnPurpose);
  return state_ != State::kEnded;
}

absl::Status ShmServeChannel::OnReady(const Packet& packet) {
  // The consumer has written into the memory what it says here: both see the same.
  uint8_t seen[sizeof(shm_wire::LinkHeader::proof)];
  memcpy(seen, given_->view().header->proof, sizeof(seen));
  if (memcmp(seen, packet.token.data(), sizeof(seen)) != 0) {
    return absl::DataLossError("the consumer does not see the memory that it was sent");
  }
  memcpy(&link_number_, seen, sizeof(link_number_));
  link_version_ = std::min(packet.version, options_.link_newest);
  can_pull_ = packet.pulls != 0 && options_.allow_pull;
  ops_.resize(sizes_.slots);
  for (size_t slot = 0; slot < ops_.size(); ++slot) {
    ops_[slot].slot = static_cast<uint16_t>(slot);
  }
  state_ = State::kOpen;
  takes_.SetEpoch(epoch_);
  since_ns_ = hub_->poller()->now_ns();
  hub_->AddLink(this);
  link_added_ = true;
  return absl::OkStatus();
}

// It asks for nothing more, but reads on what it holds: that ends with the socket.
void ShmServeChannel::OnLeave() {
  if (state_ == State::kSettling) return End(end_status_, Ending::kConsumerLeft);
  if (state_ != State::kOpen) return;
  state_ = State::kLeaving;
  takes_.SetEpoch(0);
  GiveUpUnanswered();
  (void)Settle(Ending::kConsumerLeft);
}

void ShmServeChannel::EndIfNotJoined() {
  if (state_ != State::kInvited && state_ != State::kWelcome) return;
  if (hub_->poller()->now_ns() - since_ns_ < kJoinNs) return;
  End(absl::UnavailableError("the consumer was invited and did not come"), Ending::kForGood);
}

bool ShmServeChannel::MakeWayFor(const Hello& hello) {
  if (state_ == State::kWelcome || state_ == State::kOpen || state_ == State::kSettling) {
    OnSocket();  // It may have said something last.
  }
  if (state_ == State::kEnded) return true;
  const bool settled = given_ != nullptr && given_->view().header->settlement.load() != 0;
  const bool same_life = hello.incarnation == consumer_incarnation_;
  if (same_life && hello.epoch <= epoch_ && state_ != State::kLeaving && !settled) return false;
  End(absl::UnavailableError("the consumer opens another link"), Ending::kForGood);
  return true;
}

void ShmServeChannel::Close(const absl::Status& why) { End(why, Ending::kForGood); }

void ShmServeChannel::End(const absl::Status& why, Ending how) {
  if (state_ == State::kEnded) return;
  if (state_ != State::kSettling) StartEnding(why, how);
  if (!Settle(how)) return SettleLater();
  FinishEnding(how == Ending::kConsumerGone);
}

// What was not answered goes back at once: the consumer has to ask for it again.
void ShmServeChannel::StartEnding(const absl::Status& why, Ending how) {
  const bool answers_due = std::any_of(ops_.begin(), ops_.end(), [](const ShmServeOp& op) {
    return op.state != ServeState::kFree && op.state != ServeState::kSent;
  });
  if (absl::IsDataLoss(why)) {
    TRYST_LOG(Error) << options_.self << " ends the shared memory with " << consumer_ << ": "
                     << why.message();
  } else if (answers_due) {
    TRYST_LOG(Warning) << options_.self << " no longer shares memory with " << consumer_ << ": "
                       << why.message();
  }
  state_ = State::kSettling;
  end_status_ = why;
  since_ns_ = hub_->poller()->now_ns();
  settle_pause_ns_ = 0;
  hub_->Disinvite(this);
  if (std::exchange(link_added_, false)) hub_->RemoveLink(this);
  takes_.SetEpoch(0);
  GiveUpUnanswered();
  if (given_ != nullptr) given_->view().header->producer_left.store(1, std::memory_order_release);
  // Only now may it let go of what it reads in our own memory.
  if (how == Ending::kForGood && given_ != nullptr) (void)Settle(how);
  if (socket_ != nullptr) socket_->Shutdown();
}

// Decides what becomes of each answer that was not accepted yet. False: not yet.
bool ShmServeChannel::Settle(Ending how) {
  if (given_ == nullptr) return true;
  std::atomic<uint32_t>& settlement = given_->view().header->settlement;
  uint32_t state = settlement.load(std::memory_order_acquire);
  if (state == shm_wire::kNotSettled && how == Ending::kForGood &&
      settlement.compare_exchange_strong(state, shm_wire::kNotKept)) {
    state = shm_wire::kNotKept;
  }
  if (state == shm_wire::kSettled && link_version_ >= shm_wire::kLinkSettles) {
    SettleByWord();
    return true;
  }
  if (how == Ending::kOnPurpose && state == shm_wire::kNotSettled && AnyAnswered()) return false;
  if (how == Ending::kConsumerGone) {
    // What it may have accepted is lost with it. What it would have read out of our memory, it
    // cannot have: that has a word of its own, which has not come.
    for (ShmServeOp& op : ops_) {
      if (op.state == ServeState::kPulled) GiveUp(&op);
    }
  }
  ReleaseAnswered();
  return true;
}

void ShmServeChannel::SettleByWord() {
  const shm_wire::LinkHeader& header = *given_->view().header;
  for (ShmServeOp& op : ops_) {
    if (op.state != ServeState::kSent && op.state != ServeState::kPulled) continue;
    if (WasAccepted(header, op.slot, op.request.generation)) {
      Release(&op);
    } else {
      GiveUp(&op);
    }
  }
  sent_line_.clear();
}

// A consumer that lives sees the end of the link in its next turn.
void ShmServeChannel::SettleLater() {
  settle_pause_ns_ = std::clamp<int64_t>(settle_pause_ns_ * 2, 200'000, 1'000'000'000);
  hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + settle_pause_ns_);
}

// Open: only to look what was accepted, in the turn that follows.
void ShmServeChannel::OnTimer() {
  if (state_ != State::kSettling) return;
  if (hub_->poller()->now_ns() - since_ns_ < kSettleNs) {
    return End(end_status_, Ending::kOnPurpose);
  }
  TRYST_LOG(Warning) << options_.self << " lets go of what it had sent to " << consumer_
                     << " before their link ended: it has not said what it accepted in "
                     << kSettleNs / 1'000'000'000 << " s";
  End(end_status_, Ending::kForGood);
}

void ShmServeChannel::FinishEnding(bool consumer_gone) {
  if (state_ == State::kEnded) return;  // By who was given something back.
  state_ = State::kEnded;
  hub_->poller()->CancelTimer(this);
  place_ = TensorSource::Place();
  if (socket_ != nullptr) hub_->Unwatch(socket_->fd());
  if (given_ == nullptr) {
    socket_.reset();
  } else if (consumer_gone) {
    given_->DropAll();  // Whatever it held: nobody reads it any more.
  } else if (!given_->Over()) {
    // What it still reads must not be written; our channel need not stay for that.
    hub_->arena()->KeepWhile(given_, [given = given_] { return given->Over(); });
  }
}

bool ShmServeChannel::Drained() const { return state_ == State::kEnded && takes_.idle(); }

bool ShmServeChannel::PollLink() {
  const bool returned = given_->HasReturned();
  if (returned) {
    const absl::Status taken = given_->TakeReturned().status();
    if (!taken.ok()) {
      End(taken, Ending::kOnPurpose);
      return true;
    }
  }
  if (state_ != State::kOpen) return returned;
  int cells = 0;
  for (; cells < kCellsPerTurn && requests_.Ready(); ++cells) {
    shm_wire::RequestCell cell;
    requests_.Take(reinterpret_cast<uint8_t*>(&cell), 0);
    const absl::Status understood = OnCell(cell);
    if (!understood.ok()) End(understood, Ending::kOnPurpose);
    if (state_ != State::kOpen) return true;
  }
  // Behind the requests: what was refused before that has been heard.
  bool accepted = false;
  if (!sent_line_.empty() && cells < kCellsPerTurn &&
      hub_->poller()->now_ns() - accepted_checked_ns_ >= kAcceptedNs) {
    accepted = ReleaseAccepted();
    if (state_ != State::kOpen) return true;
  }
  bool copied = false;
  if (!stage_line_.empty()) {
    ShmServeOp* op = stage_line_.front();
    copied = true;
    if (CopyToStage(op, kTurnBytes)) {
      stage_line_.pop_front();
      staging_bytes_ -= op->stage->bytes();
      op->state = ServeState::kReady;
      AnswerSoon(op);
    }
  }
  if (segments_dropped_ != hub_->arena()->segments_dropped()) TellGoneSegments();
  if (!ready_line_.empty() || !gone_line_.empty()) AnswerWaiting();
  const bool says = !parked_line_.empty() || takes_.has_here();
  if (cells > 0 || (says && replies_.HasRoom(1))) hub_->poller()->FlushThisTurn(this);
  return cells > 0 || copied || accepted || returned;
}

void ShmServeChannel::FallAsleep() {
  const bool waits = !ready_line_.empty() || !gone_line_.empty() || !parked_line_.empty() ||
                     takes_.has_here() || hub_->arena()->awaited();
  given_->view().header->producer_asleep.exchange(
      waits ? shm_wire::kForRoomToo : shm_wire::kForMessages, std::memory_order_acq_rel);
  if (sent_line_.empty()) return;
  // Nobody wakes us to say that a tensor was accepted. A consumer that takes its time is
  // asked ever less often.
  accepted_checked_ns_ = 0;
  accepted_pause_ns_ = std::clamp<int64_t>(accepted_pause_ns_ * 2, 1'000'000, 1'000'000'000);
  hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + accepted_pause_ns_);
}

bool ShmServeChannel::WakeUp() {
  const bool woken = given_->view().header->producer_asleep.exchange(
                         shm_wire::kAwake, std::memory_order_acq_rel) == shm_wire::kAwake;
  hub_->poller()->CancelTimer(this);
  if (woken) HearPacket();
  return woken;
}

// At the end of a turn in which the ring was written or read: wakes a consumer that sleeps.
void ShmServeChannel::Flush() {
  if (state_ != State::kOpen) return;
  SayParked();
  std::atomic<uint32_t>& asleep = given_->view().header->consumer_asleep;
  // Pairs with its SetAsleep(): both change the flag, and of two changes the later sees
  // what came before the earlier one. Either it sees our cell or we see its flag.
  if (asleep.fetch_add(0, std::memory_order_acq_rel) == shm_wire::kAwake) return;
  if (asleep.exchange(shm_wire::kAwake) != shm_wire::kAwake) socket_->Send(Packet());
}

void ShmServeChannel::ListOps(LiveOps* ops) const {
  for (const ShmServeOp& op : ops_) {
    if (op.state == ServeState::kFree) continue;
    LiveOp live;
    live.role = TraceRole::kServe;
    live.peer = consumer_;
    live.path = "shm";
    live.step = op.request.step;
    live.key = op.request.key;
    live.span = op.span;
    live.span.id = IdOf(op);
    if (op.taken.tensor.valid()) live.bytes = op.taken.tensor.bytes();
    ops->Add(std::move(live));
  }
  LiveOp parked;
  parked.peer = consumer_;
  parked.path = "shm";
  takes_.ListOps(parked, ops);
}

const char* ShmServeChannel::state_text() const {
  switch (state_) {
    case State::kInvited:
      return "invited";
    case State::kWelcome:
      return "is mapping the memory";
    case State::kOpen:
      return "connected";
    case State::kLeaving:
      return "has left and still holds tensors";
    case State::kSettling:
      return "is to say what it has accepted: the link is over";
    case State::kEnded:
      return "ended";
  }
  return "";
}

std::string ShmServeChannel::Explain() const {
  size_t by_state[kServeStateCount] = {};
  for (const ShmServeOp& op : ops_) ++by_state[static_cast<size_t>(op.state)];
  std::string waiting;
  if (takes_.parked() > 0) {
    absl::StrAppend(&waiting, "; ", takes_.parked(), " waits without a slot for the local Send");
  }
  for (size_t i = 1; i < kServeStateCount; ++i) {
    if (by_state[i] == 0) continue;
    absl::StrAppend(&waiting, "; ", by_state[i], " ", ServeStateName(static_cast<ServeState>(i)));
  }
  return absl::StrCat(consumer_, " fetches from us over shm: ", state_text(), " since ",
                      (hub_->poller()->now_ns() - since_ns_) / 1'000'000, " ms, holds ",
                      given_ == nullptr ? 0 : given_->held(), " tensors by reference, ",
                      given_ == nullptr ? 0 : given_->charged_bytes(), " bytes copied for it",
                      can_pull_ ? "" : ", cannot read our memory",
                      apart() ? ", gets copies alone" : "", waiting,
                      end_status_.ok() ? "" : absl::StrCat("; ", end_status_.message()));
}

}  // namespace tryst
