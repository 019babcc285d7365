#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/reached.h"
#include "channel/ops/peer_words.h"
#include "channel/shm/fetch_channel.h"

// The connection of a ShmFetchChannel: hello, knock, welcome, end.
namespace tryst {

using shm_wire::Packet;
using shm_wire::PacketType;

namespace {

// Several times within what a check may find to be over.
int64_t CheckMs(const ShmFetchOptions& options) {
  const int64_t check_ms = options.patience_ms / 8;
  return options.give_up_ms > 0 ? std::min(check_ms, options.give_up_ms / 2) : check_ms;
}

}  // namespace

ShmFetchChannel::ShmFetchChannel(ShmHub* hub, Bootstrap* bootstrap, ShmFetchOptions options)
    : FetchSession(hub->poller(), bootstrap, options, &counters_, CheckMs(options),
                   options.give_up_ms),
      link_(hub, std::move(options), this, &counters_),
      receiver_(this, &link_, connector_.back_off(), this) {
  words_ = &link_;
}

ShmFetchChannel::~ShmFetchChannel() {
  TRYST_CHECK(Drained()) << Explain();
  poller_->ForgetFlush(this);
}

absl::Status ShmFetchChannel::BeginLink(Hello* hello) {
  link_.epoch = connector_.epoch();
  shm_wire::Offer offer;
  offer.boot_id = link_.hub->host().boot_id;
  offer.network_space = link_.hub->host().network_space;
  offer.sizes = link_.options.sizes;
  offer.digests = link_.options.digests;
  hello->parameters = shm_wire::EncodeOffer(offer);
  return absl::OkStatus();
}

std::string ShmFetchChannel::FarewellParameters(const std::string& farewell) const {
  shm_wire::Offer offer;
  offer.farewell = farewell;
  return shm_wire::EncodeOffer(offer);
}

absl::Status ShmFetchChannel::UseAnswer(const Hello& answer) {
  auto invitation = shm_wire::DecodeInvitation(answer.parameters);
  if (!invitation.ok()) return invitation.status();
  MeetPeer(answer.incarnation, invitation->session);
  link_.session = session_;
  gone_incarnation_ = 0;
  auto socket = LocalSocket::Connect(invitation->socket);
  // Whom we have reached before has ended since its hello; that is no reason to leave the path.
  if (!socket.ok() && counters_.links > 0) return absl::UnavailableError(socket.status().message());
  if (!socket.ok()) return socket.status();
  link_.socket = *std::move(socket);
  Packet packet;
  packet.type = PacketType::kJoin;
  packet.token = invitation->token;
  if (!link_.socket->Send(packet)) {
    link_.socket.reset();
    return absl::UnavailableError(
        "the producer closed the local socket on which shared memory is opened");
  }
  link_.hub->Watch(link_.socket->fd(), this);
  connector_.SetState(State::kJoining);
  connector_.WaitFor(link_.options.join_timeout_ms);
  return absl::OkStatus();
}

bool ShmFetchChannel::EndAttempt(const absl::Status& why) {
  DropLink(shm_wire::kNotEnded);
  if (gone_incarnation_ == 0 || !absl::IsUnavailable(why)) return false;
  const absl::Status gone = absl::UnavailableError(absl::StrFormat(
      "the process of %s (incarnation %016x) has ended, and no new one answers yet: %s",
      link_.options.peer, gone_incarnation_, why.message()));
  for (FetchOp* op : fetches_.all()) {
    if (op->key.src_incarnation() == gone_incarnation_) EndEarly(op, gone);
  }
  return false;
}

void ShmFetchChannel::OnConnectTimer() {
  if (connector_.state() != State::kJoining) return FetchSession::OnConnectTimer();
  connector_.NoteFailing(connector_.since_ns());  // It was up then.
  FailAttempt(absl::UnavailableError(
      "the producer offered shared memory and did not answer on its local socket in time"));
}

void ShmFetchChannel::OnSocket() {
  for (int i = 0; i < kPacketsPerLook && link_.socket != nullptr; ++i) {
    if (HearPacket()) continue;
    pollfd process = {link_.producer_process.get(), POLLIN, 0};
    if (process.fd >= 0 && poll(&process, 1, 0) == 1) OnProducerGone();
    return;
  }
}

bool ShmFetchChannel::HearPacket() {
  const absl::StatusOr<LocalSocket::Received> received = ReadPacket();
  if (!received.ok()) {
    if (connector_.state() == State::kJoining) {
      FailAttempt(received.status());
    } else {
      BreakLink(received.status());
    }
    return false;
  }
  if (*received == LocalSocket::Received::kEnd) OnProducerGone();
  return *received == LocalSocket::Received::kPacket;
}

absl::StatusOr<LocalSocket::Received> ShmFetchChannel::ReadPacket() {
  Packet packet;
  OwnedFd fd;
  const LocalSocket::Received received = link_.socket->Receive(&packet, &fd);
  if (received == LocalSocket::Received::kPacket) {
    const absl::Status understood = OnPacket(packet, std::move(fd));
    if (!understood.ok()) return understood;
  }
  return received;
}

absl::Status ShmFetchChannel::ReadSocketFor(uint32_t segment) {
  // More than a socket holds; a producer that writes as fast as we read cannot keep us here.
  constexpr int kMostPackets = 1024;
  for (int i = 0; i < kMostPackets && !link_.held->has_segment(segment); ++i) {
    const absl::StatusOr<LocalSocket::Received> read = ReadPacket();
    if (!read.ok()) return read.status();
    if (*read != LocalSocket::Received::kPacket) break;
  }
  return absl::OkStatus();
}

absl::Status ShmFetchChannel::OnPacket(const Packet& packet, OwnedFd fd) {
  if (packet.type == PacketType::kWake) return absl::OkStatus();
  if (packet.type == PacketType::kWelcome && connector_.state() == State::kJoining) {
    return OnWelcome(packet, std::move(fd));
  }
  if (packet.type == PacketType::kSegment && connector_.state() == State::kOpen) {
    return link_.held->AddSegment(packet, std::move(fd));
  }
  return absl::DataLossError(
      "the producer broke the protocol: it sent a packet that is not due now");
}

absl::Status ShmFetchChannel::OnWelcome(const Packet& packet, OwnedFd fd) {
  const absl::Status opened = link_.Open(packet, std::move(fd));
  if (!opened.ok()) return opened;
  if (link_.producer_process.valid()) link_.hub->Watch(link_.producer_process.get(), this);

  const absl::Status usable = UseSlots(packet.sizes.slots);
  if (!usable.ok()) return usable;
  receiver_.Reset();
  link_.hub->AddLink(this);
  ++counters_.links;
  cells_seen_ = 0;
  OnLinkOpen();
  if (probing_) {
    AskForSign(/*again=*/false);
  } else {
    NoteUsable();
  }
  link_.FlushSoon();
  return absl::OkStatus();
}

// How many slots there are is the session's: what is held for us is named by them.
absl::Status ShmFetchChannel::UseSlots(uint32_t slots) {
  if (slots_.size() == slots) return absl::OkStatus();
  std::vector<FetchAsk*> held;
  for (FetchAsk* ask : Asked()) {
    if (!ask->has_slot()) continue;
    if (ask->said || ask->leaves())
      return absl::DataLossError(
          "the producer broke the protocol: it changes the number of slots of a session");
    held.push_back(ask);
  }
  for (; !held.empty(); held.pop_back()) AskAnew(held.back());
  slots_.Reset(slots);
  return absl::OkStatus();
}

// A look at each cell would cost every fetch.
void ShmFetchChannel::HearWords() {
  if (link_.replies.taken() == cells_seen_) return;
  cells_seen_ = link_.replies.taken();
  const uint64_t brought = counters_.ended_ok + link_.parts_taken;
  if (std::exchange(brought_seen_, brought) != brought) owed_.NoteBrought();
  OnWord();
}

// A process that was stopped reads nothing: another request would take room in the ring.
void ShmFetchChannel::AskForSign(bool again) {
  if (again) return;
  link_.words.push_back({shm_wire::CellType::kPing, 0, 0, 0});
  link_.FlushSoon();
}

absl::Status ShmFetchChannel::Overdue() {
  const auto is_awaited = [](FetchAsk* ask) {
    return ask != nullptr && ask->state == FetchState::kAsked && ShmAsk::Of(ask)->announced;
  };
  const auto& slots = slots_.all();
  owed_.NoteAwaited(std::any_of(slots.begin(), slots.end(), is_awaited));
  if (!owed_.IsLate() || owed_.word_ns() <= owed_.owes_since_ns()) return absl::OkStatus();
  TRYST_REACHED("rare: parts of a tensor in shared memory stay away");
  if (link_.options.give_up_ms > 0) return NoteLate();
  const absl::Status late = owed_.Late(link_.options.peer, link_.options.path);
  for (FetchAsk* ask : slots) {
    if (is_awaited(ask)) EndAsk(ask, late);
  }
  return absl::OkStatus();
}

void ShmFetchChannel::OnProducerGone() {
  if (connector_.state() == State::kJoining) {
    return FailAttempt(absl::UnavailableError(
        "the producer closed the local socket: it no longer expects this worker"));
  }
  if (!open()) return;
  (void)ReadCells(kCellsAfterEnd);
  if (!open()) return;
  // The kernel closes the socket of a process that has ended without a message.
  const shm_wire::LinkHeader& header = *link_.held->view().header;
  const uint32_t end = header.producer_left.load(std::memory_order_acquire);
  if (end == shm_wire::kKept) {
    return BreakLink(absl::UnavailableError(absl::StrCat(
        link_.options.peer, " has ended the shared memory and expects a new connection")));
  }
  ReadRest();
  if (!open()) return;
  gone_incarnation_ = peer_incarnation_;
  Break(
      absl::UnavailableError(absl::StrFormat(
          "%s (incarnation %016x) has ended its shared memory: its process is gone or is stopping",
          link_.options.peer, peer_incarnation_)),
      /*life_over=*/true);
}

void ShmFetchChannel::Break(const absl::Status& why, bool life_over) {
  if (connector_.state() != State::kOpen) return;
  ++counters_.breaks;
  if (absl::IsDataLoss(why)) {
    TRYST_LOG(Error) << link_.options.self << " stops sharing memory with " << link_.options.peer
                     << ": " << why.message();
  } else if (asks_.live() > 0) {
    TRYST_LOG(Warning) << link_.options.self << " no longer shares memory with "
                       << link_.options.peer << ": " << why.message();
  }
  EndLink(why, shm_wire::kKept);
  if (life_over) {
    EndAsked(why, [this](const FetchAsk& ask) { return IsForAnother(ask); });
  }
  for (FetchAsk* ask : Asked()) {
    if (ShmAsk::Of(ask)->misanswered >= kMisansweredMost) EndAsk(ask, why);
  }
  if (owed_.works() && life_over) connector_.back_off()->Reset();
  GoOn();
}

// No byte lands behind the end of the link, since only we write.
void ShmFetchChannel::EndLink(const absl::Status& why, shm_wire::LinkEnd how) {
  HearWords();
  if (connector_.state() != State::kClosed) connector_.SetState(State::kIdle);
  connector_.why = why;
  DropLink(how);
  if (how == shm_wire::kNotKept) session_ = 0;  // The producer learns it from that word.
  link_.words.clear();
  receiver_.Reset();
  BreakAsks();
  DrainAsks();
}

// The producer remembers them for us as long as the session lasts. The next fetch makes another,
// unless tensors are held that lie in the link's memory.
void ShmFetchChannel::DropKeys() {
  if (!open() || link_.held->has_views() || !link_.words.empty()) return;
  EndLink(absl::OkStatus(), shm_wire::kNotKept);
}

void ShmFetchChannel::DropLink(shm_wire::LinkEnd how) {
  connector_.StopWaiting();
  if (link_.held != nullptr) link_.hub->RemoveLink(this);
  link_.Drop(how);
}

bool ShmFetchChannel::CloseLink() {
  if (link_.held == nullptr) {
    DropLink(shm_wire::kNotEnded);
  } else {
    ++counters_.breaks;
    EndLink(closed_, shm_wire::kNotKept);
  }
  return true;
}

std::string ShmFetchChannel::Explain() const {
  std::string pull;
  if (link_.peer_memory != nullptr) {
    pull = link_.peer_memory->status().ok()
               ? ", reads its memory"
               : absl::StrCat(", does not read its memory (", link_.peer_memory->status().message(),
                              ")");
  }
  return absl::StrCat(
      connector_.Explain(), pull, ", ", ExplainOut(),
      connector_.why.ok() ? "" : absl::StrCat("; ", Printable(connector_.why.ToString())));
}

}  // namespace tryst
