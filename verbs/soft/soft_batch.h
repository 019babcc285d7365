#ifndef TRYST_VERBS_SOFT_SOFT_BATCH_H_
#define TRYST_VERBS_SOFT_SOFT_BATCH_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbs/soft/frame.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

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
  // Adds a frame. TakeWritten() returns `work` when the frame has been sent. `owner`: as
  // SendWork::owner.
  void Add(const FrameHeader& header, const iovec* payload, int payload_pieces, uint64_t work,
           const void* owner = nullptr);
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
  const void* owner_[kMaxPieces];  // Those of the pieces.
  Frame frame_[kMaxFrames];
  int frames_ = 0;
  int frames_taken_ = 0;
  int pieces_ = 0;
  int next_piece_ = 0;
  uint64_t end_ = 0;      // Bytes added.
  uint64_t written_ = 0;  // Bytes sent.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_BATCH_H_
