#ifndef TRYST_VERBS_SOFT_SOFT_LANE_H_
#define TRYST_VERBS_SOFT_SOFT_LANE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "verbs/nic.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_batch.h"
#include "verbs/soft/soft_hand.h"
#include "verbs/soft/soft_loans.h"
#include "verbs/soft/soft_pace.h"
#include "verbs/soft/soft_region_table.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

class SoftQueuePair;

// Memory for bytes that have arrived and wait to be handled.
struct SoftStaging {
  static constexpr size_t kBytes = 16 << 10;
  uint8_t bytes[kBytes];
};

// One socket of a queue pair. It is mostly data; the queue pair does the work. An idle lane is
// small: its batch and its staging belong to the completion queue, which lends them while they hold
// something.
struct SoftLane {
  enum class State : uint8_t {
    kIdle,      // No socket; the dialler waits until redial_at_ns.
    kDialling,  // Connecting; our hello was not sent.
    kGreeted,   // Our hello was sent; the peer's has not come.
    kHeld,      // Accepted and authenticated, before our own Connect().
    kUp,
  };

  bool up() const { return state == State::kUp; }
  void Recall() {  // Takes both of its hands back.
    sending.Recall();
    receiving.Recall();
  }
  void GiveBackBatch(SoftLoans<SoftBatch>* batches);
  void GiveBackStaging(SoftLoans<SoftStaging>* stagings);
  void Unpin(SoftRegionTable* regions);

  SoftQueuePair* owner = nullptr;
  int index = 0;
  State state = State::kIdle;
  SoftStream stream;
  uint64_t id = 0;           // In the completion queue's set; 0: not in it.
  uint32_t watched_for = 0;  // By epoll.
  bool handed = false;       // In the completion queue's list of those with hands given.
  bool again = false;        // And in that of those to serve in the next turn.
  SoftSendHand sending;
  SoftReceiveHand receiving;
  SoftHello hello;     // A held socket's.
  uint32_t dials = 0;  // That came to nothing.
  int64_t dialled_at_ns = 0;
  int64_t redial_at_ns = 0;
  int64_t redial_after_ns = 0;  // Doubles with each failure.

  std::unique_ptr<SoftBatch> out;  // Null: it is empty.
  bool full = false;               // The socket accepts no more at present.
  SoftPace pace;                   // Where there are several addresses.
  // The memory of a batch of read responses may be deregistered while the batch waits, so it is
  // pinned anew for each system call. 0: none.
  uint32_t out_remote_key = 0;
  uint64_t out_address = 0;
  uint64_t out_bytes = 0;

  // Bytes that have arrived and were not handled: [begin, end) of staging, of which `capacity` is
  // used.
  std::unique_ptr<SoftStaging> staging;  // Null: there are none.
  size_t capacity = 0;
  size_t begin = 0;
  size_t end = 0;
  bool parked = false;  // The first of them is a frame that waits for another lane's.
  FrameHeader frame;    // The frame whose payload is arriving.
  uint64_t payload_left = 0;
  uint64_t payload_offset = 0;  // In its message.
  uint64_t read_work = 0;       // The work whose answer it is, if it is one.
  // Set while this lane's payload lands, never across a return.
  SoftRegionRecord* pinned = nullptr;
};

// Finds bytes [offset, offset + bytes) of the concatenated `entries`. Returns the number of parts,
// at most `max`; they may cover less than `bytes`.
int Gather(const Entry* entries, int count, uint64_t offset, uint64_t bytes, iovec* out, int max);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_LANE_H_
