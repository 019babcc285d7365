#include "channel/shm/fetch_link.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/shm/asleep_flag.h"

namespace tryst {

using shm_wire::Packet;
using shm_wire::PacketType;
using shm_wire::ReplyCell;

ShmFetchLink::ShmFetchLink(FetchSession* session, ShmHub* hub, const ShmOptions& options)
    : session_(session), sender_(session, hub, options, this), receiver_(&sender_, this) {}

ShmFetchLink::~ShmFetchLink() { sender_.hub->poller()->ForgetFlush(this); }

FetchKind ShmFetchLink::Kind(ShmHub* hub, const ShmOptions& options) {
  FetchKind kind;
  kind.path = kShmPath;
  kind.open_text = "connected (same host, proved by a memory that both see)";
  kind.max_parked = shm_wire::kMaxParked;
  kind.fetches_in_callbacks = true;
  // A tensor sent after the report of a cancel cannot go to the request that was given up.
  kind.leave_ns = 1'000'000'000;
  kind.loses_no_word = true;
  kind.make = [hub, options](FetchSession* session) {
    return std::make_unique<ShmFetchLink>(session, hub, options);
  };
  return kind;
}

// ---- A link, from its hello to its end ----

absl::Status ShmFetchLink::Begin(Hello* hello) {
  sender_.epoch = session_->connector()->epoch();
  shm_wire::Offer offer;
  offer.boot_id = sender_.hub->host().boot_id;
  offer.network_space = sender_.hub->host().network_space;
  offer.sizes = sender_.options.sizes;
  offer.digests = sender_.options.digests;
  hello->parameters = shm_wire::EncodeOffer(offer);
  return absl::OkStatus();
}

std::string ShmFetchLink::FarewellParameters(const std::string& farewell) const {
  shm_wire::Offer offer;
  offer.farewell = farewell;
  return shm_wire::EncodeOffer(offer);
}

absl::Status ShmFetchLink::UseAnswer(const Hello& answer) {
  auto invitation = shm_wire::DecodeInvitation(answer.parameters);
  if (!invitation.ok()) return invitation.status();
  session_->MeetPeer(answer.incarnation, invitation->session);
  gone_incarnation_ = 0;
  auto socket = LocalSocket::Connect(invitation->socket);
  // Whom we have reached before has ended since its hello; that is no reason to leave the path.
  if (!socket.ok() && session_->counters()->links > 0)
    return absl::UnavailableError(socket.status().message());
  if (!socket.ok()) return socket.status();
  sender_.socket = *std::move(socket);
  Packet packet;
  packet.type = PacketType::kJoin;
  packet.token = invitation->token;
  if (!sender_.socket->Send(packet)) {
    sender_.socket.reset();
    return absl::UnavailableError(
        "the producer closed the local socket on which shared memory is opened");
  }
  const absl::Status watched = sender_.hub->Watch(sender_.socket->fd(), this);
  if (!watched.ok()) {
    sender_.socket.reset();
    return watched;
  }
  session_->connector()->SetState(FetchSession::State::kJoining);
  session_->connector()->WaitFor(sender_.options.join_timeout_ms);
  return absl::OkStatus();
}

bool ShmFetchLink::EndAttempt(const absl::Status& why) {
  DropLink(shm_wire::kNotEnded);
  if (gone_incarnation_ != 0 && absl::IsUnavailable(why)) {
    session_->EndFetchesOf(
        gone_incarnation_,
        absl::UnavailableError(absl::StrFormat(
            "the process of %s (incarnation %016x) has ended, and no new one answers yet: %s",
            session_->options().peer, gone_incarnation_, why.message())));
  }
  return false;
}

void ShmFetchLink::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && sender_.socket != nullptr; ++i) {
    if (HearPacket()) continue;
    pollfd process = {sender_.producer_process.get(), POLLIN, 0};
    if (process.fd >= 0 && poll(&process, 1, 0) == 1) OnProducerGone();
    return;
  }
}

bool ShmFetchLink::HearPacket() {
  const absl::StatusOr<LocalSocket::Received> received = ReadPacket();
  if (!received.ok()) {
    if (session_->connector()->state() == FetchSession::State::kJoining) {
      session_->FailAttempt(received.status());
    } else {
      Break(received.status());
    }
    return false;
  }
  if (*received == LocalSocket::Received::kEnd) OnProducerGone();
  return *received == LocalSocket::Received::kPacket;
}

absl::StatusOr<LocalSocket::Received> ShmFetchLink::ReadPacket() {
  Packet packet;
  OwnedFd fd;
  bool fd_lost = false;
  const LocalSocket::Received received = sender_.socket->Receive(&packet, &fd, &fd_lost);
  if (received == LocalSocket::Received::kPacket) {
    if (fd_lost) {
      return absl::ResourceExhaustedError(
          "the process has no file descriptor left for the producer's shared memory: raise the "
          "limit of open files (ulimit -n)");
    }
    const absl::Status understood = OnPacket(packet, std::move(fd));
    if (!understood.ok()) return understood;
  }
  return received;
}

absl::Status ShmFetchLink::ReadSocketFor(uint32_t segment) {
  // More than a socket holds; a producer that writes as fast as we read cannot keep us here.
  constexpr int kMostPackets = 1024;
  for (int i = 0; i < kMostPackets && !sender_.held->has_segment(segment); ++i) {
    const absl::StatusOr<LocalSocket::Received> read = ReadPacket();
    if (!read.ok()) return read.status();
    if (*read != LocalSocket::Received::kPacket) break;
  }
  return absl::OkStatus();
}

absl::Status ShmFetchLink::OnPacket(const Packet& packet, OwnedFd fd) {
  if (packet.type == PacketType::kWake) return absl::OkStatus();
  if (packet.type == PacketType::kWelcome &&
      session_->connector()->state() == FetchSession::State::kJoining) {
    return OnWelcome(packet, std::move(fd));
  }
  if (packet.type == PacketType::kSegment &&
      session_->connector()->state() == FetchSession::State::kOpen) {
    return sender_.held->AddSegment(packet, std::move(fd));
  }
  return absl::DataLossError(
      "the producer broke the protocol: it sent a packet that is not due now");
}

absl::Status ShmFetchLink::OnWelcome(const Packet& packet, OwnedFd fd) {
  const absl::Status opened = sender_.Open(packet, std::move(fd));
  if (!opened.ok()) return opened;
  // Its socket also ends with its process.
  if (sender_.producer_process.valid()) {
    sender_.hub->Watch(sender_.producer_process.get(), this).IgnoreError();
  }

  if (!session_->UseSlots(packet.sizes.slots)) {
    return absl::DataLossError(
        "the producer broke the protocol: it changes the number of slots of a session");
  }
  receiver_.Reset();
  sender_.hub->AddLink(this);
  cells_seen_ = 0;
  session_->OnLinkOpen();
  if (session_->is_probing()) AskForSign(/*again=*/false);
  sender_.FlushSoon();
  return absl::OkStatus();
}

// A look at each cell would cost every fetch.
void ShmFetchLink::HearWords() {
  if (sender_.replies.taken() == cells_seen_) return;
  cells_seen_ = sender_.replies.taken();
  const uint64_t brought = session_->counters()->ended_ok + sender_.parts_taken;
  if (std::exchange(brought_seen_, brought) != brought) session_->owed()->NoteBrought();
  session_->OnWord();
}

// A process that was stopped reads nothing: another request would take room in the ring.
void ShmFetchLink::AskForSign(bool again) {
  if (again) return;
  sender_.words.push_back({shm_wire::CellType::kPing, 0, 0, 0});
  sender_.FlushSoon();
}

absl::Status ShmFetchLink::Overdue() {
  FetchOwed* const owed = session_->owed();
  const auto is_awaited = [](FetchAsk* ask) {
    return ask != nullptr && ask->state == FetchState::kAsked && ShmAsk::Of(ask)->announced;
  };
  const auto& slots = session_->slots().all();
  owed->NoteAwaited(std::any_of(slots.begin(), slots.end(), is_awaited));
  if (!owed->IsLate() || owed->word_ns() <= owed->owes_since_ns()) return absl::OkStatus();
  TRYST_REACHED("rare: parts of a tensor in shared memory stay away");
  if (session_->options().give_up_ms > 0) return session_->NoteLate();
  const absl::Status late = owed->Late(session_->options().peer, session_->options().path);
  for (FetchAsk* ask : slots) {
    if (is_awaited(ask)) session_->EndAsk(ask, late);
  }
  return absl::OkStatus();
}

void ShmFetchLink::OnProducerGone() {
  if (session_->connector()->state() == FetchSession::State::kJoining) {
    return session_->FailAttempt(absl::UnavailableError(
        "the producer closed the local socket: it no longer expects this worker"));
  }
  if (!open()) return;
  (void)ReadCells(kCellsAfterEnd);
  if (!open()) return;
  // The kernel closes the socket of a process that has ended without a message.
  const shm_wire::LinkHeader& header = *sender_.held->view().header;
  const uint32_t end = header.producer_left.load(std::memory_order_acquire);
  if (end == shm_wire::kKept) {
    return Break(absl::UnavailableError(absl::StrCat(
        session_->options().peer, " has ended the shared memory and expects a new connection")));
  }
  ReadRest();
  if (!open()) return;
  gone_incarnation_ = session_->peer_incarnation();
  End(absl::UnavailableError(absl::StrFormat(
          "%s (incarnation %016x) has ended its shared memory: its process is gone or is stopping",
          session_->options().peer, session_->peer_incarnation())),
      /*life_over=*/true);
}

void ShmFetchLink::End(const absl::Status& why, bool life_over) {
  if (!open()) return;
  session_->OnLinkBroken(why);
  DropLink(shm_wire::kKept);
  session_->DrainAsks();  // No byte lands behind the end of the link, since only we write.
  if (life_over) {
    session_->EndAsked(why, [this](const FetchAsk& ask) { return session_->IsForAnother(ask); });
  }
  for (FetchAsk* ask : session_->Asked()) {
    if (ShmAsk::Of(ask)->misanswered >= kMisansweredMost) session_->EndAsk(ask, why);
  }
  session_->GoOn();
}

// The producer remembers them for us as long as the session lasts. The next fetch makes another,
// unless tensors are held that lie in the link's memory.
void ShmFetchLink::DropKeys() {
  if (!open() || sender_.held->has_views() || !sender_.words.empty()) return;
  HearWords();
  DropLink(shm_wire::kNotKept);  // The producer learns from that word that the session is over.
  session_->EndIdle();
}

void ShmFetchLink::DropLink(shm_wire::LinkEnd how) {
  session_->connector()->StopWaiting();
  if (sender_.held != nullptr) sender_.hub->RemoveLink(this);
  sender_.Drop(how);
  sender_.words.clear();
  receiver_.Reset();
}

bool ShmFetchLink::Close(const absl::Status& why) {
  if (sender_.held == nullptr) {
    DropLink(shm_wire::kNotEnded);
    return true;
  }
  session_->OnLinkBroken(why);
  DropLink(shm_wire::kNotKept);
  session_->EndSession();
  session_->DrainAsks();
  return true;
}

// ---- Asks ----

absl::Status ShmFetchLink::MayFillDevice(int) const {
  return absl::UnimplementedError(
      "a receive over shared memory cannot write device memory: receive into host memory");
}

void ShmFetchLink::OnWaits(FetchOp* op) {
  if (session_->AwaitPeer(session_->live_asks() == 1 && op->ask->front == op)) sender_.FlushSoon();
}

void ShmFetchLink::OnLeaves(FetchAsk* ask, FetchState from) {
  if (from == FetchState::kCopying) receiver_.StopCopy(ShmAsk::Of(ask));
  DropMemory(ask);
}

uint64_t ShmFetchLink::BytesOf(const FetchAsk& ask) const {
  return ask.state == FetchState::kCopying ? ShmAsk::Of(ask).bytes : 0;
}

// ---- Turns ----

int ShmFetchLink::ReadCells(int most) {
  int cells = 0;
  for (; cells < most && open() && sender_.replies.Ready(); ++cells) {
    ReplyCell cell;
    sender_.replies.Take(reinterpret_cast<uint8_t*>(&cell), shm_wire::kIsLongAt);
    const absl::Status understood = receiver_.OnCell(cell);
    if (!understood.ok()) {
      if (!absl::IsResourceExhausted(understood)) NoteMisanswered(cell);
      Break(understood);
    }
  }
  return cells;
}

// What the producer answered before its end is in the ring and counts. Its own memory may be that
// of another process now.
void ShmFetchLink::ReadRest() {
  (void)ReadCells(kCellsAfterEnd);
  while (open() && receiver_.copies()) {
    if (receiver_.pulls_next()) {
      receiver_.ForgetNextCopy();
    } else {
      (void)receiver_.RunCopy();
    }
  }
}

bool ShmFetchLink::PollLink() {
  if (!open()) return false;
  const int cells = ReadCells(kCellsPerTurn);
  if (!open()) return true;  // A callback may have closed us, too.
  const bool copied = receiver_.copies();
  if (copied) {
    const absl::Status good = receiver_.RunCopy();
    if (!good.ok()) {  // The session has ended.
      ReadRest();
      End(good, /*life_over=*/true);
    }
    if (!open()) return true;
  }
  // A producer may wait for the room in its ring, and we may have waited for some in ours.
  if (cells > 0 || has_more_to_say()) sender_.FlushSoon();
  return cells > 0 || copied;
}

// Counts wrong answers: a fetch that is asked for again may get a right one, but not for ever. What
// this process has no room for is not the producer's fault.
void ShmFetchLink::NoteMisanswered(const ReplyCell& cell) {
  if (!open() || cell.head.slot >= session_->slots().size()) return;
  ShmAsk* ask = ShmAsk::Of(session_->slots().at(cell.head.slot));
  if (ask != nullptr) ++ask->misanswered;
}

// At the end of a turn: says what there is to say, and wakes a producer that sleeps.
void ShmFetchLink::Flush() {
  if (!open()) return;
  if (session_->is_probing()) HearWords();
  if (sender_.SayWords()) session_->SayAll();
  sender_.WakeProducer();
}

void ShmFetchLink::FallAsleep() {
  AsleepFlag(&sender_.held->view().header->consumer_asleep)
      .Raise(has_more_to_say() ? shm_wire::kForRoomToo : shm_wire::kForMessages);
}

bool ShmFetchLink::WakeUp() {
  const bool woken = AsleepFlag(&sender_.held->view().header->consumer_asleep).Lower();
  if (woken) HearPacket();
  return woken;
}

std::string ShmFetchLink::Explain() const {
  if (sender_.peer_memory == nullptr) return "";
  if (sender_.peer_memory->status().ok()) return ", reads its memory";
  return absl::StrCat(", does not read its memory (", sender_.peer_memory->status().message(), ")");
}

}  // namespace tryst
