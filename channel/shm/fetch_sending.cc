#include "channel/shm/fetch_sending.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/ops/limits.h"
#include "channel/shm/asleep_flag.h"

namespace tryst {

using shm_wire::CellType;
using shm_wire::Packet;
using shm_wire::PacketType;
using shm_wire::RequestCell;

absl::Status ShmSender::Open(const Packet& packet, OwnedFd fd) {
  const shm_wire::LinkSizes& sizes = packet.sizes;
  const absl::Status good = shm_wire::CheckSizes(sizes);
  if (!good.ok()) return good;
  // The slots are those of the session's first link, which may be of another kind.
  const uint32_t most_slots = std::max(options.sizes.slots, limits::kUsedSlots);
  if (sizes.cells > options.sizes.cells || sizes.slots > most_slots ||
      sizes.references > options.sizes.references) {
    return absl::DataLossError(
        "the producer broke the protocol: it made the shared memory larger than this worker had "
        "asked for");
  }
  auto memory = SharedMemory::Map(std::move(fd), SharedMemory::Rounded(shm_wire::LinkBytes(sizes)),
                                  /*writable=*/true);
  if (!memory.ok()) return memory.status();
  held = new HeldReferences(socket, *std::move(memory), sizes, hub->arena()->peer_watcher());
  const shm_wire::LinkView& view = held->view();
  counters->messages += requests.written();
  requests = RingWriter<shm_wire::kRequestCellBytes>(view.requests, sizes.cells,
                                                     &view.header->requests_read);
  replies =
      RingReader<shm_wire::kReplyCellBytes>(view.replies, sizes.cells, &view.header->replies_read);
  peer_memory =
      PeerMemory::Probe(options.allow_pull && packet.probe_address != 0 ? socket->peer_pid() : 0,
                        packet.probe_address, packet.probe, sizeof(packet.probe));
  // Below these all is over, whatever link it came by: the producer may not know it yet.
  for (uint16_t slot = 0; slot < sizes.slots && session->slots().size() == sizes.slots; ++slot) {
    view.slots[slot].accepted.store(session->slots().generation(slot));
  }
  Packet ready;
  ready.type = PacketType::kReady;
  ready.pulls = peer_memory->status().ok() ? 1 : 0;
  FillSecret(ready.token.data(), sizeof(view.header->proof));
  memcpy(view.header->proof, ready.token.data(), sizeof(view.header->proof));
  if (!socket->Send(ready))
    return absl::UnavailableError(
        "the producer closed the local socket while shared memory was being opened");
  producer_process = socket->WatchPeer();
  return absl::OkStatus();
}

void ShmSender::Drop(shm_wire::LinkEnd how) {
  if (socket == nullptr) return;
  if (producer_process.valid()) hub->Unwatch(producer_process.get());
  producer_process = OwnedFd();
  hub->Unwatch(socket->fd());
  if (held != nullptr) {
    held->view().header->consumer_left.store(how, std::memory_order_release);
    // Where this finds no room, one that the producer has not read is there to wake it.
    if (how != shm_wire::kNotEnded) socket->Send(Packet());
    std::exchange(held, nullptr)->Unref();
  }
  peer_memory.reset();
  socket.reset();
}

// A fetch that takes a view needs no destination.
uint8_t ShmSender::DestinationFlag(const FetchAsk& ask) {
  return ask.destination().valid() && !ask.wants().prefers_view ? shm_wire::kHasDestination : 0;
}

uint32_t ShmSender::KeyCells(const FetchKey& key) {
  constexpr size_t kRoom = sizeof(RequestCell::body);
  return static_cast<uint32_t>((key.told_text().size() + kRoom - 1) / kRoom);
}

// In a request, and of one that waits without a slot.
void ShmSender::WriteAsk(const FetchAsk& ask, RequestCell* cell) {
  memcpy(cell->body, &ask.step, sizeof(ask.step));
  memcpy(cell->body + sizeof(ask.step), &ask.ticket, sizeof(ask.ticket));
}

// Tells the key, too, if the producer does not know it. It checks for room first, because from the
// next cell on both sides read a reused number as the new key.
bool ShmSender::SendRequest(FetchAsk* ask, bool may_park) {
  FetchKey* const key = ask->of;
  if (!HasRoom(*ask)) return false;
  if (key->told != epoch) TellKey(key);
  const uint8_t flags =
      static_cast<uint8_t>(DestinationFlag(*ask) | (may_park ? shm_wire::kMayPark : 0) |
                           (ask->said ? shm_wire::kReplay : 0));
  Put({CellType::kRequest, flags, ask->slot, ask->generation}, key->id,
      [ask](RequestCell* cell) { WriteAsk(*ask, cell); });
  ask->trace_id =
      TraceId(session->session(), uint64_t{ask->slot} << 16 | ask->generation, ask->step);
  return true;
}

// REQUIRES: there is room for its cells.
void ShmSender::TellKey(FetchKey* key) {
  const absl::string_view text = key->told_text();
  const uint8_t flags = key->is_run() ? shm_wire::kRun : 0;
  constexpr size_t kRoom = sizeof(RequestCell::body);
  const size_t cells = KeyCells(*key);
  for (size_t i = 0; i < cells; ++i) {
    Put({i == 0 ? CellType::kKey : CellType::kMore, flags, static_cast<uint16_t>(text.size()), 0},
        key->id, [&](RequestCell* cell) {
          memcpy(cell->body, text.data() + i * kRoom, std::min(kRoom, text.size() - i * kRoom));
        });
  }
  key->told = epoch;
}

bool ShmSender::Say(const Word& word) {
  if (!requests.HasRoom(1)) return false;
  Put(word, 0, [](RequestCell*) {});
  return true;
}

bool ShmSender::SendCancel(const FetchAsk& ask) {
  return Say({CellType::kCancel, 0, ask.slot, ask.generation});
}

bool ShmSender::SendPark(const FetchAsk& ask) {
  if (!requests.HasRoom(1)) return false;
  Put({CellType::kPark, 0, ask.slot, ask.generation}, 0,
      [&ask](RequestCell* cell) { memcpy(cell->body, &ask.ticket, sizeof(ask.ticket)); });
  return true;
}

bool ShmSender::SendWaits(FetchAsk* ask) {
  FetchKey* const key = ask->of;
  if (!HasRoom(*ask)) return false;
  if (key->told != epoch) TellKey(key);
  Put({CellType::kWaits, 0, 0, 0}, key->id, [ask](RequestCell* cell) { WriteAsk(*ask, cell); });
  return true;
}

bool ShmSender::SendUnwanted(absl::Span<const uint64_t> tickets) {
  if (!requests.HasRoom(1)) return false;
  Put({CellType::kUnwanted, 0, 0, 0}, 0,
      [tickets](RequestCell* cell) { WriteTickets(tickets, cell); });
  return true;
}

void ShmSender::SaySoon(const FetchAsk& ask, CellType type, uint8_t flags) {
  words.push_back({type, flags, ask.slot, ask.generation});
  FlushSoon();
}

// Sends statements about slots that are free again; they must go before those slots are used anew.
bool ShmSender::SayWords() {
  for (; !words.empty(); words.pop_front()) {
    if (!Say(words.front())) return false;
  }
  return true;
}

// An RMW of +0 orders our earlier reads before it.
bool ShmSender::IsLent(const FetchAsk& ask) const {
  std::atomic<uint32_t>& loan = held->view().slots[ask.slot].loan;
  return loan.fetch_add(0, std::memory_order_acq_rel) == shm_wire::kLent;
}

bool ShmSender::TakeLoan(const FetchAsk& ask) {
  uint32_t loan = shm_wire::kLent;
  return held->view().slots[ask.slot].loan.compare_exchange_strong(loan, shm_wire::kTaken);
}

void ShmSender::WakeProducer() {
  if (AsleepFlag(&held->view().header->producer_asleep).TakeDown()) socket->Send(Packet());
}

}  // namespace tryst
