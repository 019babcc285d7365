#ifndef TRYST_CHANNEL_SHM_FETCH_SENDING_H_
#define TRYST_CHANNEL_SHM_FETCH_SENDING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "channel/channel.h"
#include "channel/ops/connector.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/fetch_words.h"
#include "channel/ops/ring_line.h"
#include "channel/poller/poller.h"
#include "channel/shm/peer_memory.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/shm_options.h"
#include "channel/shm/wire.h"
#include "channel/trace/trace.h"

namespace tryst {

// One link of shared memory at its consumer: what the connection (ShmFetchLink) and the answers
// (ShmReceiver) share, and what is sent over it. Poller thread only.
struct ShmSender final : public FetchWords {
  // A statement about a slot, to be sent when there is room.
  struct Word {
    shm_wire::CellType type;
    uint8_t flags;
    uint16_t slot;
    uint32_t generation;
  };
  // `flush` runs at the end of a turn in which something was queued. All outlive it.
  ShmSender(FetchSession* session, ShmHub* hub, const ShmOptions& options, PollerFlush* flush)
      : session(session),
        hub(hub),
        options(options),
        counters(session->counters()),
        flush_(flush) {}

  FetchSession* const session;
  ShmHub* const hub;
  const ShmOptions options;
  uint64_t epoch = 0;  // Its hello has it.
  std::shared_ptr<LocalSocket> socket;
  // To see its end: a child that it forked may hold its end of the socket open.
  OwnedFd producer_process;
  HeldReferences* held = nullptr;  // Has a count of references, one of which is ours.
  std::unique_ptr<PeerMemory> peer_memory;
  RingWriter<shm_wire::kRequestCellBytes> requests;
  RingReader<shm_wire::kReplyCellBytes> replies;
  uint64_t parts_taken = 0;  // Counts those of tensors that come in parts, on all links.
  RingLine<Word> words;
  FetchCounters* const counters;

  // Handles the producer's welcome: maps the memory that it sends, and says that we are ready.
  absl::Status Open(const shm_wire::Packet& welcome, OwnedFd fd);
  // Drops the link, and says `how` it ends. Views that are held keep the socket and the memory: the
  // end of the socket tells the producer that the last view is gone.
  void Drop(shm_wire::LinkEnd how);
  // What it was answered is delivered: the producer need not keep it.
  void Accept(const FetchAsk& ask) {
    held->view().slots[ask.slot].accepted.store(ask.generation + 1, std::memory_order_release);
  }
  // Whether what was read of the producer's own memory is the tensor, as long as it is not taken.
  bool IsLent(const FetchAsk& ask) const;
  // Takes it; from now on it cannot go back. False: the producer has it back.
  bool TakeLoan(const FetchAsk& ask);

  // FetchWords.
  void FlushSoon() override { hub->poller()->FlushThisTurn(flush_); }
  bool AsksAtOnce() const override { return words.empty(); }
  bool HasRoom(const FetchAsk& ask) override {
    return requests.HasRoom(ask.of->told == epoch ? 1 : KeyCells(*ask.of) + 1);
  }
  bool SendRequest(FetchAsk* ask, bool may_park) override;
  bool SendCancel(const FetchAsk& ask) override;
  bool SendPark(const FetchAsk& ask) override;
  bool SendWaits(FetchAsk* ask) override;
  bool SendReplayed() override { return Say({shm_wire::CellType::kReplayed, 0, 0, 0}); }
  bool SendUnwanted(absl::Span<const uint64_t> tickets) override;
  size_t most_tickets() const override { return shm_wire::kRequestTickets; }

  void SaySoon(const FetchAsk& ask, shm_wire::CellType type, uint8_t flags);
  bool SayWords();
  // Wakes the producer if it sleeps; call it after the ring was written or read.
  void WakeProducer();

 private:
  // Writes a cell, whose body `fill` writes. From then on the producer may read it. REQUIRES: there
  // is room for it.
  template <typename Fn>
  void Put(const Word& word, uint32_t number, Fn fill) {
    auto* const cell = reinterpret_cast<shm_wire::RequestCell*>(requests.cell());
    cell->head.type = word.type;
    cell->head.flags = word.flags;
    cell->head.slot = word.slot;
    cell->head.generation = word.generation;
    cell->head.number = number;
    fill(cell);
    requests.Publish();
  }
  static void WriteAsk(const FetchAsk& ask, shm_wire::RequestCell* cell);
  void TellKey(FetchKey* key);
  bool Say(const Word& word);
  static uint32_t KeyCells(const FetchKey& key);
  static uint8_t DestinationFlag(const FetchAsk& ask);

  PollerFlush* const flush_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_SENDING_H_
