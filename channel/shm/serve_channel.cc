#include "channel/shm/serve_channel.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/shm/asleep_flag.h"
#include "channel/shm/same_host.h"

namespace tryst {

using shm_wire::Packet;
using shm_wire::PacketType;

namespace {

constexpr int kCellsPerTurn = 64;
constexpr int kPacketsPerLook = 8;
constexpr int64_t kJoinNs = 15'000'000'000;
constexpr int64_t kSettleNs = 60'000'000'000;  // After this time a consumer counts as lost.

}  // namespace

ShmServeChannel::ShmServeChannel(ShmHub* hub, TensorSource* source, ShmServeOptions options,
                                 const Hello& consumer, const shm_wire::Offer& offer)
    : consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      epoch_(consumer.epoch),
      link_(hub, std::move(options), this),
      since_ns_(hub->poller()->now_ns()),
      requests_(&link_, source, consumer_, [this] {
        if (Drained() && link_.options.on_drained) link_.options.on_drained();
      }) {
  link_.digests = link_.options.digests || offer.digests;
  link_.sizes.cells = std::min(offer.sizes.cells, link_.options.most.cells);
  link_.sizes.slots = std::min(offer.sizes.slots, link_.options.most.slots);
  link_.sizes.references = std::min(offer.sizes.references, link_.options.most.references);
}

ShmServeChannel::~ShmServeChannel() {
  TRYST_CHECK(Drained()) << Explain();
  link_.hub->poller()->ForgetFlush(this);
}

void ShmServeChannel::SetState(State state) {
  state_ = state;
  link_.open = state == State::kOpen;
}

absl::StatusOr<Hello> ShmServeChannel::Invite() {
  auto invitation = link_.hub->Invite(this);
  if (!invitation.ok()) return invitation.status();
  Hello answer;
  answer.worker = link_.options.self;
  answer.incarnation = link_.options.self_incarnation;
  answer.epoch = epoch_;
  answer.path = "shm";
  answer.parameters = shm_wire::EncodeInvitation(*invitation);
  return answer;
}

void ShmServeChannel::OnGuest(std::unique_ptr<LocalSocket> socket) {
  link_.socket = std::move(socket);
  link_.apart = link_.options.apart || IsAnotherUser(link_.socket->peer_user(), geteuid());
  const absl::Status welcomed = Welcome();
  if (!welcomed.ok()) End(welcomed, Ending::kForGood);
}

absl::Status ShmServeChannel::Welcome() {
  auto memory =
      SharedMemory::Create(shm_wire::LinkBytes(link_.sizes), SharedMemory::Writers::kEverybody);
  if (!memory.ok()) return memory.status();
  const int fd = (*memory)->fd();
  link_.given = std::make_shared<GivenReferences>(link_.socket, *std::move(memory), link_.sizes);
  const shm_wire::LinkView& view = link_.given->view();
  link_.requests = RingReader<shm_wire::kRequestCellBytes>(view.requests, link_.sizes.cells,
                                                           &view.header->requests_read);
  link_.replies = RingWriter<shm_wire::kReplyCellBytes>(view.replies, link_.sizes.cells,
                                                        &view.header->replies_read);
  FillSecret(proof_.data(), proof_.size());
  Packet packet;
  packet.type = PacketType::kWelcome;
  packet.version = shm_wire::kLinkVersion;
  packet.sizes = link_.sizes;
  packet.digests = link_.digests ? 1 : 0;
  packet.probe_address = link_.options.allow_pull
                             ? static_cast<uint64_t>(reinterpret_cast<uintptr_t>(proof_.data()))
                             : 0;
  memcpy(packet.probe, proof_.data(), sizeof(packet.probe));
  if (!link_.socket->Send(packet, fd))
    return absl::UnavailableError(
        "the consumer closed its local socket while shared memory was being opened");
  link_.hub->Watch(link_.socket->fd(), this);
  SetState(State::kWelcome);
  return absl::OkStatus();
}

// The rest is read in the next look, so a talkative peer cannot keep us here.
void ShmServeChannel::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && HearPacket(); ++i) {
  }
}

bool ShmServeChannel::HearPacket() {
  Packet packet;
  OwnedFd unwanted;
  switch (link_.socket->Receive(&packet, &unwanted)) {
    case LocalSocket::Received::kNothing:
      return false;
    case LocalSocket::Received::kEnd:
      End(absl::UnavailableError(
              "the consumer has closed its local socket: its process has ended or is stopping"),
          Ending::kConsumerGone);
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
    understood = absl::DataLossError(
        "the consumer broke the protocol: it sent a packet that is not due now");
  }
  if (!understood.ok()) End(understood, Ending::kOnPurpose);
  return state_ != State::kEnded;
}

absl::Status ShmServeChannel::OnReady(const Packet& packet) {
  if (packet.version != shm_wire::kLinkVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the consumer speaks version ", packet.version, " of shared memory, and ",
                     shm_wire::kLinkVersion, " is needed: run Tryst 0.2.0 or a later one there"));
  }
  // The consumer has written these bytes into the memory: so both map the same memory.
  uint8_t seen[sizeof(shm_wire::LinkHeader::proof)];
  memcpy(seen, link_.given->view().header->proof, sizeof(seen));
  if (memcmp(seen, packet.token.data(), sizeof(seen)) != 0) {
    return absl::DataLossError(
        "the consumer broke the protocol: it has not mapped the memory that it was sent");
  }
  memcpy(&link_.number, seen, sizeof(link_.number));
  link_.can_pull = packet.pulls != 0 && link_.options.allow_pull;
  requests_.Open(epoch_);
  SetState(State::kOpen);
  since_ns_ = link_.hub->poller()->now_ns();
  link_.hub->AddLink(this);
  link_added_ = true;
  return absl::OkStatus();
}

// The consumer requests nothing more, but still reads what it holds, until its socket ends.
void ShmServeChannel::OnLeave() {
  if (state_ == State::kSettling) return End(end_status_, Ending::kConsumerLeft);
  if (state_ != State::kOpen) return;
  SetState(State::kLeaving);
  requests_.GiveUpUnanswered();
  (void)Settle(Ending::kConsumerLeft);
}

void ShmServeChannel::EndIfNotJoined() {
  if (state_ != State::kInvited && state_ != State::kWelcome) return;
  if (link_.hub->poller()->now_ns() - since_ns_ < kJoinNs) return;
  End(absl::UnavailableError(
          "the consumer asked for shared memory and did not connect to the local socket in time"),
      Ending::kForGood);
}

bool ShmServeChannel::MakeWayFor(const Hello& hello) {
  if (state_ == State::kWelcome || state_ == State::kOpen || state_ == State::kSettling) {
    OnSocket();  // Its last packet may still be there.
  }
  if (state_ == State::kEnded) return true;
  const bool settled = link_.given != nullptr && link_.given->view().header->settlement.load() != 0;
  const bool same_life = hello.incarnation == consumer_incarnation_;
  if (same_life && hello.epoch <= epoch_ && state_ != State::kLeaving && !settled) return false;
  End(absl::UnavailableError("the consumer opens its shared memory anew"), Ending::kForGood);
  return true;
}

void ShmServeChannel::Close(const absl::Status& why) { End(why, Ending::kForGood); }

void ShmServeChannel::End(const absl::Status& why, Ending how) {
  if (state_ == State::kEnded) return;
  if (state_ != State::kSettling) StartEnding(why, how);
  if (!Settle(how)) return SettleLater();
  FinishEnding(how == Ending::kConsumerGone);
}

// Unanswered requests end at once: the consumer has to make them again.
void ShmServeChannel::StartEnding(const absl::Status& why, Ending how) {
  const bool answers_due = requests_.any_unanswered();
  if (absl::IsDataLoss(why)) {
    TRYST_LOG(Error) << link_.options.self << " stops sharing memory with " << consumer_ << ": "
                     << why.message();
  } else if (answers_due) {
    TRYST_LOG(Warning) << link_.options.self << " no longer shares memory with " << consumer_
                       << ": " << why.message();
  }
  SetState(State::kSettling);
  end_status_ = why;
  since_ns_ = link_.hub->poller()->now_ns();
  settle_pause_ns_ = 0;
  link_.hub->Disinvite(this);
  if (std::exchange(link_added_, false)) link_.hub->RemoveLink(this);
  requests_.GiveUpUnanswered();
  if (link_.given != nullptr)
    link_.given->view().header->producer_left.store(1, std::memory_order_release);
  // Only after that may the consumer stop reading our own memory.
  if (how == Ending::kForGood && link_.given != nullptr) (void)Settle(how);
  if (link_.socket != nullptr) link_.socket->Shutdown();
}

// Decides about each answer that was not accepted yet. False: it cannot be decided yet.
bool ShmServeChannel::Settle(Ending how) {
  if (link_.given == nullptr) return true;
  std::atomic<uint32_t>& settlement = link_.given->view().header->settlement;
  uint32_t state = settlement.load(std::memory_order_acquire);
  if (state == shm_wire::kNotSettled && how == Ending::kForGood &&
      settlement.compare_exchange_strong(state, shm_wire::kNotKept)) {
    state = shm_wire::kNotKept;
  }
  if (state == shm_wire::kSettled) {
    requests_.SettleByWord();
    return true;
  }
  if (how == Ending::kOnPurpose && state == shm_wire::kNotSettled && requests_.any_answered())
    return false;
  if (how == Ending::kConsumerGone) {
    // What it may have accepted is lost with it. It cannot have accepted a tensor that it had still
    // to read from our own memory, because it would have said so in a cell.
    requests_.GiveUpPulled();
  }
  requests_.ReleaseAnswered();
  return true;
}

// A live consumer sees the end of the link in its next turn.
void ShmServeChannel::SettleLater() {
  settle_pause_ns_ = std::clamp<int64_t>(settle_pause_ns_ * 2, 200'000, 1'000'000'000);
  link_.hub->poller()->SetTimer(this, link_.hub->poller()->now_ns() + settle_pause_ns_);
}

// In state kOpen the timer only brings a turn, in which accepted answers are found.
void ShmServeChannel::OnTimer() {
  if (state_ != State::kSettling) return;
  if (link_.hub->poller()->now_ns() - since_ns_ < kSettleNs) {
    return End(end_status_, Ending::kOnPurpose);
  }
  TRYST_LOG(Warning) << link_.options.self << " gives up waiting for " << consumer_
                     << ", whose shared memory has ended, to say which tensors it received, and "
                        "drops those sent: it waited for "
                     << kSettleNs / 1'000'000'000 << " s";
  End(end_status_, Ending::kForGood);
}

void ShmServeChannel::FinishEnding(bool consumer_gone) {
  if (state_ == State::kEnded) return;  // A receiver of a tensor that was given back has ended it.
  SetState(State::kEnded);
  link_.hub->poller()->CancelTimer(this);
  if (link_.socket != nullptr) link_.hub->Unwatch(link_.socket->fd());
  if (link_.given != nullptr) link_.given->DropParts();
  if (link_.given == nullptr) {
    link_.socket.reset();
  } else if (consumer_gone) {
    link_.given->DropAll();  // Nothing reads its references any more.
  } else if (!link_.given->Over()) {
    // Memory that the consumer still reads must not be overwritten. The arena ensures that, so this
    // channel need not stay.
    link_.hub->arena()->KeepWhile(link_.given, [given = link_.given] { return given->Over(); });
    kept_ = link_.given;
  }
}

bool ShmServeChannel::Drained() const { return state_ == State::kEnded && requests_.idle(); }

bool ShmServeChannel::PollLink() {
  const bool returned = link_.given->HasReturned();
  if (returned) {
    const absl::Status taken = link_.given->TakeReturned().status();
    if (!taken.ok()) {
      End(taken, Ending::kOnPurpose);
      return true;
    }
  }
  if (state_ != State::kOpen) return returned;
  int cells = 0;
  for (; cells < kCellsPerTurn && link_.requests.Ready(); ++cells) {
    shm_wire::RequestCell cell;
    link_.requests.Take(reinterpret_cast<uint8_t*>(&cell), 0);
    const absl::Status understood = requests_.OnCell(cell);
    if (!understood.ok()) End(understood, Ending::kOnPurpose);
    if (state_ != State::kOpen) return true;
  }
  // After the requests, so that refusals in them have been handled first.
  absl::StatusOr<bool> accepted = false;
  if (cells < kCellsPerTurn) accepted = requests_.ReleaseAccepted();
  if (!accepted.ok()) End(accepted.status(), Ending::kOnPurpose);
  if (state_ != State::kOpen) return true;
  const bool copied = requests_.CopySome();
  requests_.SayWaiting();
  if (cells > 0) link_.FlushSoon();
  return cells > 0 || copied || *accepted || returned;
}

void ShmServeChannel::FallAsleep() {
  const bool waits = requests_.waits_for_room() || link_.hub->arena()->awaited();
  AsleepFlag(&link_.given->view().header->producer_asleep)
      .Raise(waits ? shm_wire::kForRoomToo : shm_wire::kForMessages);
  const int64_t pause_ns = requests_.LookAgainNs();
  if (pause_ns > 0) link_.hub->poller()->SetTimer(this, link_.hub->poller()->now_ns() + pause_ns);
}

bool ShmServeChannel::WakeUp() {
  const bool woken = AsleepFlag(&link_.given->view().header->producer_asleep).Lower();
  link_.hub->poller()->CancelTimer(this);
  if (woken) HearPacket();
  return woken;
}

// At the end of a turn in which the ring was written or read: wakes a sleeping consumer.
void ShmServeChannel::Flush() {
  if (state_ != State::kOpen) return;
  requests_.SayWords();
  link_.WakeConsumer();
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

PathHealth ShmServeChannel::health() const {
  switch (state_) {
    case State::kInvited:
    case State::kWelcome:
      return PathHealth::kOpening;
    case State::kOpen:
      return PathHealth::kWorking;
    case State::kSettling:
      return PathHealth::kFailing;
    case State::kLeaving:
    case State::kEnded:
      return PathHealth::kIdle;
  }
  return PathHealth::kIdle;
}

std::string ShmServeChannel::Explain() const {
  // What it holds after the end the arena looks after, on any thread.
  const GivenReferences* const given = state_ == State::kEnded ? nullptr : link_.given.get();
  return absl::StrCat(consumer_, " fetches from us over shm: ", state_text(), " since ",
                      (link_.hub->poller()->now_ns() - since_ns_) / 1'000'000, " ms, holds ",
                      given == nullptr ? 0 : given->held(), " tensors by reference, ",
                      given == nullptr ? 0 : given->charged_bytes(), " bytes copied for it",
                      link_.can_pull ? "" : ", cannot read our memory",
                      apart() ? ", gets copies alone" : "", requests_.Explain(),
                      end_status_.ok() ? "" : absl::StrCat("; ", end_status_.message()));
}

}  // namespace tryst
