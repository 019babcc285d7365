#include "channel/shm/serve_channel.h"

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

ServeSlotsOptions SlotsOptions() {
  ServeSlotsOptions slots;
  slots.generation_bits = 32;
  slots.max_parked = shm_wire::kMaxParked;
  slots.tickets_a_word = shm_wire::kReplyTickets;
  return slots;
}

}  // namespace

ShmServeChannel::ShmServeChannel(ShmHub* hub, TensorSource* source, ShmServeOptions options,
                                 const Hello& consumer, uint64_t session)
    : ServeSession(hub->poller(), source, options, SlotsOptions(), consumer, session),
      link_(hub, std::move(options), this, &counters_),
      answers_(&link_, &slots_) {
  process_.channel = this;
}

ShmServeChannel::~ShmServeChannel() {
  TRYST_CHECK(Drained()) << Explain();
  poller_->CancelTimer(this);
  poller_->ForgetFlush(this);
  ForgetFormer();
}

// ---- A link, from its hello to its end ----

absl::StatusOr<Hello> ShmServeChannel::OpenLink(const Hello& hello) {
  if (link_.options.may_open) {
    const absl::Status may_open = link_.options.may_open();
    if (!may_open.ok()) return may_open;
  }
  const auto offer = shm_wire::DecodeOffer(hello.parameters);
  if (!offer.ok()) return offer.status();
  link_.digests = link_.options.digests || offer->digests;
  link_.sizes.cells = std::min(offer->sizes.cells, link_.options.most.cells);
  // The slots are the session's.
  link_.sizes.slots = slots_.made() ? static_cast<uint32_t>(slots_.size())
                                    : std::min(offer->sizes.slots, link_.options.most.slots);
  link_.sizes.references = std::min(offer->sizes.references, link_.options.most.references);
  auto invitation = link_.hub->Invite(this);
  if (!invitation.ok()) return invitation.status();
  invitation->session = session_;
  state_ = State::kInvited;
  state_since_ns_ = poller_->now_ns();
  Hello answer = NewAnswer(hello.epoch);
  answer.parameters = shm_wire::EncodeInvitation(*invitation);
  return answer;
}

void ShmServeChannel::OnGuest(std::unique_ptr<LocalSocket> socket) {
  link_.socket = std::move(socket);
  link_.apart = link_.options.apart || IsAnotherUser(link_.socket->peer_user(), geteuid());
  const absl::Status welcomed = Welcome();
  if (!welcomed.ok()) BreakLink(welcomed);
}

absl::Status ShmServeChannel::Welcome() {
  auto memory =
      SharedMemory::Create(shm_wire::LinkBytes(link_.sizes), SharedMemory::Writers::kEverybody);
  if (!memory.ok()) return memory.status();
  const int fd = (*memory)->fd();
  link_.given = std::make_shared<GivenReferences>(link_.socket, *std::move(memory), link_.sizes);
  const shm_wire::LinkView& view = link_.given->view();
  // What is answered is not accepted before the consumer says so.
  for (const ServeOp& op : slots_) view.slots[op.slot].accepted.store(op.generation);
  link_.requests = RingReader<shm_wire::kRequestCellBytes>(view.requests, link_.sizes.cells,
                                                           &view.header->requests_read);
  link_.replies = RingWriter<shm_wire::kReplyCellBytes>(view.replies, link_.sizes.cells,
                                                        &view.header->replies_read);
  FillSecret(proof_.data(), proof_.size());
  Packet packet;
  packet.type = PacketType::kWelcome;
  packet.sizes = link_.sizes;
  packet.digests = link_.digests ? 1 : 0;
  packet.probe_address = link_.options.allow_pull
                             ? static_cast<uint64_t>(reinterpret_cast<uintptr_t>(proof_.data()))
                             : 0;
  memcpy(packet.probe, proof_.data(), sizeof(packet.probe));
  link_.hub->Watch(link_.socket->fd(), this);
  state_ = State::kWelcome;
  if (!link_.socket->Send(packet, fd))
    return absl::UnavailableError(
        "the consumer closed its local socket while shared memory was being opened");
  return absl::OkStatus();
}

// The rest is read in the next look, so a talkative peer cannot keep us here.
void ShmServeChannel::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && link_.socket != nullptr && HearPacket(); ++i) {
  }
}

bool ShmServeChannel::HearPacket() {
  Packet packet;
  OwnedFd unwanted;
  absl::Status understood;
  switch (link_.socket->Receive(&packet, &unwanted)) {
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
  if (!understood.ok()) BreakLink(understood);
  return link_.socket != nullptr;
}

absl::Status ShmServeChannel::OnReady(const Packet& packet) {
  // The consumer has written these bytes into the memory: so both map the same memory.
  uint8_t seen[sizeof(shm_wire::LinkHeader::proof)];
  memcpy(seen, link_.given->view().header->proof, sizeof(seen));
  if (memcmp(seen, packet.token.data(), sizeof(seen)) != 0) {
    return absl::DataLossError(
        "the consumer broke the protocol: it has not mapped the memory that it was sent");
  }
  link_.can_pull = packet.pulls != 0 && link_.options.allow_pull;
  if (!slots_.made()) {
    slots_.Make(link_.sizes.slots);
    answers_.Make(link_.sizes.slots);
  }
  // By now the consumer neither reads nor accepts anything of the former link.
  (void)EndFormer();
  if (state_ != State::kWelcome) return absl::OkStatus();  // Whoever got a tensor has ended it.
  ForgetFormer();
  process_.fd = link_.socket->WatchPeer();
  if (process_.fd.valid()) link_.hub->Watch(process_.fd.get(), &process_);
  key_bytes_ = 0;
  answers_.Begin();
  state_ = State::kOpen;
  OnLinkOpen(epoch_);
  link_.hub->AddLink(this);
  return absl::OkStatus();
}

void ShmServeChannel::BreakLink(const absl::Status& why) {
  if (absl::IsDataLoss(why)) {
    TRYST_LOG(Error) << self_ << " stops sharing memory with " << consumer_ << ": "
                     << why.message();
  } else if (!closed() && !is_replaced() && !absl::IsCancelled(why) && any_unanswered()) {
    TRYST_LOG(Warning) << self_ << " no longer shares memory with " << consumer_ << ": "
                       << why.message();
  }
  end_status_ = why;
  DropLink();
  OnLinkGone();
}

void ShmServeChannel::DropLink() {
  const bool was_open = state_ == State::kOpen;
  state_ = State::kNone;
  state_since_ns_ = poller_->now_ns();
  link_.hub->Disinvite(this);
  poller_->CancelTimer(this);
  if (was_open) {
    link_.hub->RemoveLink(this);
    answers_.OnLinkOver();
    slots_.Disconnect();
    former_memory_ = link_.given->memory();
    former_ = link_.given->view();
    counters_.messages += link_.replies.written();
  }
  if (link_.given != nullptr) {
    // The consumer may hold it for open already. Before the end of the socket: a socket that ends
    // without it is the end of a process.
    link_.given->view().header->producer_left.store(closed() ? shm_wire::kNotKept : shm_wire::kKept,
                                                    std::memory_order_release);
  }
  if (link_.socket != nullptr) {
    link_.hub->Unwatch(link_.socket->fd());
    link_.socket->Shutdown();
  }
  if (link_.given != nullptr) {
    link_.given->DropParts();
    if (consumer_gone_) {
      link_.given->DropAll();  // Nothing reads its references any more.
    } else if (!link_.given->Over()) {
      // Memory that the consumer still reads must not be overwritten. The arena ensures that, so
      // it need not be kept here.
      link_.hub->arena()->KeepWhile(link_.given, [given = link_.given] { return given->Over(); });
      if (link_.options.on_kept) link_.options.on_kept(link_.given);
    }
  }
  link_.given = nullptr;
  link_.socket = nullptr;
}

void ShmServeChannel::ForgetFormer() {
  former_memory_ = nullptr;
  if (process_.fd.valid()) link_.hub->Unwatch(process_.fd.get());
  process_.fd = OwnedFd();
}

// ---- Ends ----

// One side has the tensor of each loan: the consumer, if it had read all of it and looked; or we.
ServeEvent ShmServeChannel::EndFormer() {
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

bool ShmServeChannel::HearLeft() {
  // The consumer may hold it for open before we have heard so.
  if (state_ != State::kOpen && state_ != State::kWelcome) return false;
  switch (link_.given->view().header->consumer_left.load(std::memory_order_acquire)) {
    case shm_wire::kKept:
      BreakLink(absl::CancelledError("the consumer has ended this link"));
      return true;
    case shm_wire::kNotKept:
      Close(absl::CancelledError("the consumer has ended its session"));
      return true;
    default:
      return false;
  }
}

void ShmServeChannel::OnSocketEnd() {
  if (HearLeft()) return;
  const absl::Status why = absl::UnavailableError(
      "the consumer has closed its local socket: its process has ended or is stopping");
  // Who had a link and does not open the next one may come again.
  if (state_ != State::kOpen && slots_.made()) return BreakLink(why);
  consumer_gone_ = true;
  if (any_unanswered()) {
    TRYST_LOG(Warning) << self_ << " no longer shares memory with " << consumer_ << ": "
                       << why.message();
  }
  Close(why);
}

// The process of the last link has ended. Several descriptors are looked at in one turn, and this
// one may have the number of another that was closed in the same turn, so it is asked.
void ShmServeChannel::OnProcessGone() {
  pollfd process = {process_.fd.get(), POLLIN, 0};
  if (poll(&process, 1, 0) != 1) return;
  link_.hub->Unwatch(process_.fd.get());
  process_.fd = OwnedFd();
  (void)HearLeft();  // It may have said goodbye.
  consumer_gone_ = true;
  Close(absl::UnavailableError("the consumer's process has ended"));
}

bool ShmServeChannel::Abandoned() const {
  if (ServeSession::Abandoned()) return true;
  return !slots_.made() && poller_->now_ns() - state_since_ns_ >= kJoinNs;
}

// ---- Turns ----

bool ShmServeChannel::PollLink() {
  const bool returned = link_.given->HasReturned();
  if (returned) {
    const absl::Status taken = link_.given->TakeReturned().status();
    if (!taken.ok()) {
      BreakLink(taken);
      return true;
    }
  }
  int cells = 0;
  for (; cells < kCellsPerTurn && link_.requests.Ready(); ++cells) {
    shm_wire::RequestCell cell;
    link_.requests.Take(reinterpret_cast<uint8_t*>(&cell), 0);
    const absl::Status understood = OnCell(cell);
    if (state_ != State::kOpen) return true;  // Whoever got a tensor back has ended it.
    if (!understood.ok()) {
      BreakLink(understood);
      return true;
    }
  }
  const bool accepted = cells < kCellsPerTurn && ReleaseAccepted();
  if (state_ != State::kOpen) return true;
  const bool copied = answers_.CopySome();
  SayWaiting();
  if (cells > 0) link_.FlushSoon();
  return cells > 0 || copied || accepted || returned;
}

void ShmServeChannel::FallAsleep() {
  const bool waits = waits_for_room() || link_.hub->arena()->awaited();
  AsleepFlag(&link_.given->view().header->producer_asleep)
      .Raise(waits ? shm_wire::kForRoomToo : shm_wire::kForMessages);
  const int64_t pause_ns = LookAgainNs();
  if (pause_ns > 0) poller_->SetTimer(this, poller_->now_ns() + pause_ns);
}

bool ShmServeChannel::WakeUp() {
  const bool woken = AsleepFlag(&link_.given->view().header->producer_asleep).Lower();
  poller_->CancelTimer(this);
  if (woken) HearPacket();
  return woken;
}

// At the end of a turn in which the ring was written or read: wakes a sleeping consumer.
void ShmServeChannel::Flush() {
  if (state_ != State::kOpen) return;
  (void)slots_.SayWords();
  link_.WakeConsumer();
}

// ---- Views ----

ServeCounters ShmServeChannel::counters() const {
  ServeCounters now = counters_;
  if (state_ == State::kOpen) now.messages += link_.replies.written();
  return now;
}

const char* ShmServeChannel::state_text() const {
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

void ShmServeChannel::ViewLink(PathView* view) const {
  view->state = state_text();
  view->health = state_ == State::kOpen   ? PathHealth::kWorking
                 : state_ == State::kNone ? PathHealth::kIdle
                                          : PathHealth::kOpening;
  view->note = apart() ? "gets copies alone" : "";
}

std::string ShmServeChannel::Explain() const {
  const GivenReferences* const given = link_.given.get();
  return absl::StrCat(
      consumer_, " fetches from us over shm: ", state_text(), " since ",
      (poller_->now_ns() - state_since_ns_) / 1'000'000, " ms, holds ",
      given == nullptr ? 0 : given->held(), " tensors by reference, ",
      given == nullptr ? 0 : given->charged_bytes(), " bytes copied for it",
      link_.can_pull ? "" : ", cannot read our memory", apart() ? ", gets copies alone" : "",
      slots_.Explain("; ", "; "),
      end_status_.ok() || state_ == State::kOpen ? "" : absl::StrCat("; ", end_status_.message()));
}

}  // namespace tryst
