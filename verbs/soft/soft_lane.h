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
#include "verbs/soft/soft_region_table.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

class SoftQueuePair;

// Where what arrives waits to be taken.
struct SoftStaging {
  static constexpr size_t kBytes = 16 << 10;
  uint8_t bytes[kBytes];
};

// Frames on their way out through one socket: gathered from where they lie, so that one
// system call takes many, and kept until the socket has taken them all.
class SoftBatch {
 public:
  static constexpr int kMaxFrames = 32;
  static constexpr int kMaxPieces = 128;
  static constexpr uint64_t kNoWork = ~uint64_t{0};

  enum class Progress { kAll, kSome, kLost };

  bool empty() const { return next_piece_ == pieces_; }
  // Room for one more frame of that many payload pieces.
  bool HasRoom(int payload_pieces) const;
  uint64_t bytes() const { return end_; }
  // Adds a frame; `work` is whose frame it is, for TakeWritten().
  void Add(const FrameHeader& header, const iovec* payload, int payload_pieces, uint64_t work);
  // One system call. kSome: the socket is full.
  Progress WriteTo(SoftStream* stream, size_t* written);
  // The works whose frames have left whole since the last call; kNoWork when no more.
  uint64_t TakeWritten();
  // What remains of a frame that has partly left, for when the rest must not follow.
  std::vector<uint8_t> RestOfFrame() const;
  // To be called when all is written and taken.
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
  uint64_t written_ = 0;  // Of them.
};

// One socket of a queue pair. Only data: the queue pair does the work. An idle one is small:
// its batch and its staging are the completion queue's, lent while there is something in them.
struct SoftLane {
  enum class State : uint8_t {
    kIdle,      // No socket; the dialler waits for redial_at_ns.
    kDialling,  // Connecting; our hello has not left.
    kGreeted,   // Our hello has left; theirs has not come.
    kHeld,      // Accepted and authenticated before our own Connect().
    kUp,
  };

  bool up() const { return state == State::kUp; }

  SoftQueuePair* owner = nullptr;
  int index = 0;
  State state = State::kIdle;
  SoftStream stream;
  uint64_t id = 0;                // In the completion queue's set; 0: not in it.
  bool watched_for_room = false;  // By epoll.
  SoftHello hello;                // Of one that is held.
  int64_t redial_at_ns = 0;
  int64_t redial_after_ns = 0;  // Doubles with each failure.

  std::unique_ptr<SoftBatch> out;  // Null: empty.
  bool full = false;               // The socket took no more.
  // A batch of read responses lies in memory that may be deregistered while it waits:
  // it is pinned anew for each system call. 0: none.
  uint32_t out_remote_key = 0;
  uint64_t out_address = 0;
  uint64_t out_bytes = 0;

  // Arrived and not yet taken: [begin, end) of staging, of which `capacity` is used.
  std::unique_ptr<SoftStaging> staging;  // Null: nothing has.
  size_t capacity = 0;
  size_t begin = 0;
  size_t end = 0;
  FrameHeader frame;  // The one whose payload is arriving.
  uint64_t payload_left = 0;
  uint64_t payload_offset = 0;         // In its message.
  uint64_t read_work = 0;              // Whose answer it is, if one.
  SoftRegionRecord* pinned = nullptr;  // While this lane's payload lands; never over a return.
};

// The pieces of bytes [offset, offset + bytes) of what `entries` hold end to end.
// Returns how many, at most `max`; they may cover less than `bytes` then.
int Gather(const Entry* entries, int count, uint64_t offset, uint64_t bytes, iovec* out, int max);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_LANE_H_
