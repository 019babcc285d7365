#ifndef TRYST_VERBS_SOFT_SOFT_LANE_H_
#define TRYST_VERBS_SOFT_SOFT_LANE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/nic.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_loans.h"
#include "verbs/soft/soft_region_table.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

class SoftQueuePair;

// Memory for bytes that have arrived and wait to be handled.
struct SoftStaging {
  static constexpr size_t kBytes = 16 << 10;
  uint8_t bytes[kBytes];
};

// Frames to be sent through one socket. One system call sends many of them from where they are;
// they stay here until the socket has taken them all.
class SoftBatch {
 public:
  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxPieces = 128;
  static constexpr uint64_t kNoWork = ~uint64_t{0};

  enum class Progress { kAll, kSome, kLost };

  bool empty() const { return next_piece_ == pieces_; }
  // Whether there is room for one more frame with that many payload parts.
  bool HasRoom(int payload_pieces) const;
  uint64_t bytes() const { return end_; }
  // Adds a frame. TakeWritten() returns `work` when the frame has been sent.
  void Add(const FrameHeader& header, const iovec* payload, int payload_pieces, uint64_t work);
  // One system call. kSome: the socket is full.
  Progress WriteTo(SoftStream* stream, size_t* written);
  // The works whose frames were sent completely since the last call; kNoWork: no more.
  uint64_t TakeWritten();
  // The rest of a frame that was sent in part, for the case that nothing may follow it.
  std::vector<uint8_t> RestOfFrame() const;
  // Call it when everything was written and taken.
  void Clear();

 private:
  struct Frame {
    uint64_t end = 0;  // In the batch's bytes.
    uint64_t work = 0;
  };

  uint8_t headers_[kMaxFrames][kFrameHeaderBytes];
  iovec piece_[kMaxPieces];
  Frame frame_[kMaxFrames];
  int frames_ = 0;
  int frames_taken_ = 0;
  int pieces_ = 0;
  int next_piece_ = 0;
  uint64_t end_ = 0;      // Bytes added.
  uint64_t written_ = 0;  // Bytes sent.
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
  void GiveBackBatch(SoftLoans<SoftBatch>* batches);
  void GiveBackStaging(SoftLoans<SoftStaging>* stagings);
  void Unpin(SoftRegionTable* regions);

  SoftQueuePair* owner = nullptr;
  int index = 0;
  State state = State::kIdle;
  SoftStream stream;
  uint64_t id = 0;                // In the completion queue's set; 0: not in it.
  bool watched_for_room = false;  // By epoll.
  SoftHello hello;                // Of a held socket.
  int64_t redial_at_ns = 0;
  int64_t redial_after_ns = 0;  // Doubles with each failure.

  std::unique_ptr<SoftBatch> out;  // Null: it is empty.
  bool full = false;               // The socket accepts no more at present.
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
  FrameHeader frame;  // The frame whose payload is arriving.
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
