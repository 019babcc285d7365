#include "channel/shm/serve_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/shm/asleep_flag.h"
#include "channel/shm/same_host.h"

namespace tryst {

using shm_wire::Packet;
using shm_wire::PacketType;

namespace {

constexpr int kCellsPerTurn = 64;
constexpr int kPacketsPerLook = 8;
constexpr int64_t kJoinNs = 15'000'000'000;

}  // namespace

ShmServeLink::ShmServeLink(ServeSession* session, ShmHub* hub, const ShmOptions& options,
                           Bounds bounds)
    : session_(session),
      slots_(*session->slots()),
      poller_(hub->poller()),
      bounds_(std::move(bounds)),
      sender_(hub, options, this, session->counters()),
      answers_(&sender_, &slots_) {
  process_.link = this;
  // Those that another kind of link has left us may end before we are open.
  if (slots_.made()) answers_.Make(slots_.size());
}

ShmServeLink::~ShmServeLink() {
  poller_->CancelTimer(this);
  poller_->ForgetFlush(this);
  ForgetFormer();
}

// ---- A link, from its hello to its end ----

absl::Status ShmServeLink::Open(const Hello& hello, Hello* answer) {
  if (bounds_.may_open) {
    const absl::Status may_open = bounds_.may_open();
    if (!may_open.ok()) return may_open;
  }
  const auto offer = shm_wire::DecodeOffer(hello.parameters);
  if (!offer.ok()) return offer.status();
  sender_.digests = sender_.options.digests || offer->digests;
  sender_.sizes.cells = std::min(offer->sizes.cells, sender_.options.sizes.cells);
  // The slots are the session's.
  sender_.sizes.slots = slots_.made() ? static_cast<uint32_t>(slots_.size())
                                      : std::min(offer->sizes.slots, sender_.options.sizes.slots);
  sender_.sizes.references = std::min(offer->sizes.references, sender_.options.sizes.references);
  auto invitation = sender_.hub->Invite(this);
  if (!invitation.ok()) return invitation.status();
  invitation->session = session_->number();
  state_ = State::kInvited;
  session_->NoteState();
  answer->parameters = shm_wire::EncodeInvitation(*invitation);
  return absl::OkStatus();
}

void ShmServeLink::OnGuest(std::unique_ptr<LocalSocket> socket) {
  sender_.socket = std::move(socket);
  sender_.apart = sender_.options.apart || IsAnotherUser(sender_.socket->peer_user(), geteuid());
  const absl::Status welcomed = Welcome();
  if (!welcomed.ok()) Break(welcomed);
}

absl::Status ShmServeLink::Welcome() {
  auto memory =
      SharedMemory::Create(shm_wire::LinkBytes(sender_.sizes), SharedMemory::Writers::kEverybody);
  if (!memory.ok()) return memory.status();
  const int fd = (*memory)->fd();
  sender_.given =
      std::make_shared<GivenReferences>(sender_.socket, *std::move(memory), sender_.sizes);
  const shm_wire::LinkView& view = sender_.given->view();
  // What is answered is not accepted before the consumer says so.
  for (const ServeOp& op : slots_) view.slots[op.slot].accepted.store(op.generation);
  sender_.requests = RingReader<shm_wire::kRequestCellBytes>(view.requests, sender_.sizes.cells,
                                                             &view.header->requests_read);
  sender_.replies = RingWriter<shm_wire::kReplyCellBytes>(view.replies, sender_.sizes.cells,
                                                          &view.header->replies_read);
  FillSecret(proof_.data(), proof_.size());
  Packet packet;
  packet.type = PacketType::kWelcome;
  packet.sizes = sender_.sizes;
  packet.digests = sender_.digests ? 1 : 0;
  packet.probe_address = sender_.options.allow_pull
                             ? static_cast<uint64_t>(reinterpret_cast<uintptr_t>(proof_.data()))
                             : 0;
  memcpy(packet.probe, proof_.data(), sizeof(packet.probe));
  const absl::Status watched = sender_.hub->Watch(sender_.socket->fd(), this);
  if (!watched.ok()) return watched;
  state_ = State::kWelcome;
  if (!sender_.socket->Send(packet, fd))
    return absl::UnavailableError(
        "the consumer closed its local socket while shared memory was being opened");
  return absl::OkStatus();
}

// The rest is read in the next look, so a talkative peer cannot keep us here.
void ShmServeLink::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && sender_.socket != nullptr && HearPacket(); ++i) {
  }
}

bool ShmServeLink::HearPacket() {
  Packet packet;
  OwnedFd unwanted;
  absl::Status understood;
  switch (sender_.socket->Receive(&packet, &unwanted)) {
    case LocalSocket::Received::kNothing:
      return false;
    case LocalSocket::Received::kEnd:
      OnSocketEnd();
      return false;
    case LocalSocket::Received::kPacket:
      break;
  }
  if (packet.type == PacketType::kReady && state_ == State::kWelcome) {
    understood = OnReady(packet);
  } else if (packet.type == PacketType::kWake) {
    (void)HearLeft();
  } else {
    understood = absl::DataLossError(
        "the consumer broke the protocol: it sent a packet that is not due now");
  }
  if (!understood.ok()) Break(understood);
  return sender_.socket != nullptr;
}

absl::Status ShmServeLink::OnReady(const Packet& packet) {
  // The consumer has written these bytes into the memory: so both map the same memory.
  uint8_t seen[sizeof(shm_wire::LinkHeader::proof)];
  memcpy(seen, sender_.given->view().header->proof, sizeof(seen));
  if (memcmp(seen, packet.token.data(), sizeof(seen)) != 0) {
    return absl::DataLossError(
        "the consumer broke the protocol: it has not mapped the memory that it was sent");
  }
  sender_.can_pull = packet.pulls != 0 && sender_.options.allow_pull;
  slots_.Make(sender_.sizes.slots);
  answers_.Make(sender_.sizes.slots);
  // By now the consumer neither reads nor accepts anything of the former link, and has said what it
  // had accepted by others.
  (void)EndFormer();
  slots_.EndThose(ServeEvent::kAccepted, [this](const ServeOp& op) {
    return op.state == ServeState::kSent && sender_.given != nullptr &&
           shm_wire::WasAccepted(sender_.given->view(), op.slot, op.generation);
  });
  if (state_ != State::kWelcome) return absl::OkStatus();  // Whoever got a tensor has ended it.
  ForgetFormer();
  process_.fd = sender_.socket->WatchPeer();
  // Without this its end shows by the end of the socket alone.
  if (process_.fd.valid()) sender_.hub->Watch(process_.fd.get(), &process_).IgnoreError();
  key_bytes_ = 0;
  answers_.Begin();
  state_ = State::kOpen;
  session_->OnLinkOpen(session_->epoch());
  sender_.hub->AddLink(this);
  return absl::OkStatus();
}

void ShmServeLink::Break(const absl::Status& why) {
  end_status_ = why;
  const bool was_open = std::exchange(state_, State::kNone) == State::kOpen;
  sender_.hub->Disinvite(this);
  poller_->CancelTimer(this);
  if (was_open) {
    sender_.hub->RemoveLink(this);
    answers_.OnLinkOver();
    former_memory_ = sender_.given->memory();
    former_ = sender_.given->view();
    session_->counters()->messages += sender_.replies.written();
  }
  session_->OnLinkBroken(why);
  if (sender_.given != nullptr) {
    // The consumer may hold it for open already. Before the end of the socket: a socket that ends
    // without it is the end of a process.
    sender_.given->view().header->producer_left.store(
        session_->closed() ? shm_wire::kNotKept : shm_wire::kKept, std::memory_order_release);
  }
  if (sender_.socket != nullptr) {
    sender_.hub->Unwatch(sender_.socket->fd());
    sender_.socket->Shutdown();
  }
  if (sender_.given != nullptr) {
    sender_.given->DropParts();
    if (consumer_gone_) {
      sender_.given->DropAll();  // Nothing reads its references any more.
    } else if (!sender_.given->Over()) {
      // Memory that the consumer still reads must not be overwritten. The arena ensures that, so
      // it need not be kept here.
      sender_.hub->arena()->KeepWhile(sender_.given,
                                      [given = sender_.given] { return given->Over(); });
      if (bounds_.on_kept) bounds_.on_kept(sender_.given);
    }
  }
  sender_.given = nullptr;
  sender_.socket = nullptr;
  session_->OnLinkGone();
}

void ShmServeLink::ForgetFormer() {
  former_memory_ = nullptr;
  if (process_.fd.valid()) sender_.hub->Unwatch(process_.fd.get());
  process_.fd = OwnedFd();
}

// ---- Ends ----

// One side has the tensor of each loan: the consumer, if it had read all of it and looked; or we.
ServeEvent ShmServeLink::EndFormer() {
  if (former_memory_ == nullptr) return ServeEvent::kLeft;
  // Before the words of the slots: a consumer that is here still may accept more.
  const bool left =
      consumer_gone_ || former_.header->consumer_left.load(std::memory_order_acquire) != 0;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    ServeOp* const op = slots_.at(slot);
    if (op->state == ServeState::kSent && shm_wire::Accepted(former_, op->slot, op->generation)) {
      slots_.OnAccepted(op);
    }
    if (op->state != ServeState::kPulled) continue;
    uint32_t loan = shm_wire::kLent;
    if (former_.slots[slot].loan.compare_exchange_strong(loan, shm_wire::kLoanEnded)) {
      TRYST_REACHED("shm: a loan ends that was not taken");
      slots_.Unlinked(op);
    } else {
      TRYST_REACHED("shm: a loan that was taken");
      slots_.OnAccepted(op);
    }
  }
  return left ? ServeEvent::kNotAccepted : ServeEvent::kLeft;
}

bool ShmServeLink::HearLeft() {
  // The consumer may hold it for open before we have heard so.
  if (state_ != State::kOpen && state_ != State::kWelcome) return false;
  switch (sender_.given->view().header->consumer_left.load(std::memory_order_acquire)) {
    case shm_wire::kKept:
      Break(absl::CancelledError("the consumer has ended this link"));
      return true;
    case shm_wire::kNotKept:
      session_->Close(absl::CancelledError("the consumer has ended its session"));
      return true;
    default:
      return false;
  }
}

void ShmServeLink::OnSocketEnd() {
  if (HearLeft()) return;
  const absl::Status why = absl::UnavailableError(
      "the consumer has closed its local socket: its process has ended or is stopping");
  // Who had a link and does not open the next one may come again.
  if (state_ != State::kOpen && slots_.made()) return Break(why);
  consumer_gone_ = true;
  session_->LogLoss(why);
  session_->Close(why);
}

// The process of the last link has ended. Several descriptors are looked at in one turn, and this
// one may have the number of another that was closed in the same turn, so it is asked.
void ShmServeLink::OnProcessGone() {
  pollfd process = {process_.fd.get(), POLLIN, 0};
  if (poll(&process, 1, 0) != 1) return;
  sender_.hub->Unwatch(process_.fd.get());
  process_.fd = OwnedFd();
  (void)HearLeft();  // It may have said goodbye.
  consumer_gone_ = true;
  session_->Close(absl::UnavailableError("the consumer's process has ended"));
}

bool ShmServeLink::Abandoned() const {
  return !slots_.made() && poller_->now_ns() - session_->state_since_ns() >= kJoinNs;
}

// ---- Turns ----

bool ShmServeLink::PollLink() {
  const bool returned = sender_.given->HasReturned();
  if (returned) {
    const absl::Status taken = sender_.given->TakeReturned().status();
    if (!taken.ok()) {
      Break(taken);
      return true;
    }
  }
  int cells = 0;
  for (; cells < kCellsPerTurn && sender_.requests.Ready(); ++cells) {
    shm_wire::RequestCell cell;
    sender_.requests.Take(reinterpret_cast<uint8_t*>(&cell), 0);
    const absl::Status understood = OnCell(cell);
    if (state_ != State::kOpen) return true;  // Whoever got a tensor back has ended it.
    if (!understood.ok()) {
      Break(understood);
      return true;
    }
  }
  const bool accepted = cells < kCellsPerTurn && ReleaseAccepted();
  if (state_ != State::kOpen) return true;
  const bool copied = answers_.CopySome();
  SayWaiting();
  if (cells > 0) sender_.FlushSoon();
  return cells > 0 || copied || accepted || returned;
}

void ShmServeLink::FallAsleep() {
  const bool waits = waits_for_room() || sender_.hub->arena()->awaited();
  AsleepFlag(&sender_.given->view().header->producer_asleep)
      .Raise(waits ? shm_wire::kForRoomToo : shm_wire::kForMessages);
  const int64_t pause_ns = LookAgainNs();
  if (pause_ns > 0) poller_->SetTimer(this, poller_->now_ns() + pause_ns);
}

bool ShmServeLink::WakeUp() {
  const bool woken = AsleepFlag(&sender_.given->view().header->producer_asleep).Lower();
  poller_->CancelTimer(this);
  if (woken) HearPacket();
  return woken;
}

// At the end of a turn in which the ring was written or read: wakes a sleeping consumer.
void ShmServeLink::Flush() {
  if (state_ != State::kOpen) return;
  (void)slots_.SayWords();
  sender_.WakeConsumer();
}

// ---- Views ----

const char* ShmServeLink::state_text() const {
  switch (state_) {
    case State::kNone:
      return "not connected";
    case State::kInvited:
      return "invited";
    case State::kWelcome:
      return "is mapping the memory";
    case State::kOpen:
      return "connected";
  }
  return "";
}

void ShmServeLink::View(PathView* view) const {
  view->state = state_text();
  view->health = state_ == State::kOpen   ? PathHealth::kWorking
                 : state_ == State::kNone ? PathHealth::kIdle
                                          : PathHealth::kOpening;
  view->note = apart() ? "gets copies alone" : answers_.Explain();
}

std::string ShmServeLink::Explain() const {
  const GivenReferences* const given = sender_.given.get();
  return absl::StrCat(
      ", holds ", references(), " tensors by reference, ",
      given == nullptr ? 0 : given->charged_bytes(), " bytes copied for it",
      sender_.can_pull ? "" : ", cannot read our memory", apart() ? ", gets copies alone" : "",
      end_status_.ok() || state_ == State::kOpen ? "" : absl::StrCat("; ", end_status_.message()));
}

}  // namespace tryst
