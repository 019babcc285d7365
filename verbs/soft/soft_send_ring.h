#ifndef TRYST_VERBS_SOFT_SOFT_SEND_RING_H_
#define TRYST_VERBS_SOFT_SOFT_SEND_RING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "verbs/nic.h"
#include "verbs/soft/soft_context.h"

namespace tryst {

// A work from PostSend(), until it is given back.
struct SoftSend {
  uint64_t id = 0;
  const void* owner = nullptr;
  uint64_t remote_address = 0;
  uint64_t total = 0;
  uint64_t assigned = 0;   // Bytes assigned to lanes.
  uint64_t landed = 0;     // How much of a READ has come.
  uint64_t announced = 0;  // How much of a READ is in frames that have begun.
  uint32_t sequence = 0;   // Numbers a request; set when it is started.
  uint32_t remote_key = 0;
  uint32_t immediate = 0;
  uint32_t unwritten_frames = 0;
  int entries = 0;
  SendOp op = SendOp::kWrite;
  CompletionStatus error = CompletionStatus::kOk;  // An error found before it was sent.
  bool signaled = true;
  bool inline_data = false;
  bool started = false;
  bool announced_first = false;  // Its first frame is in a batch.
  bool answered = false;         // All bytes of a READ are there.
};

// The sends of a queue pair, by running numbers: of those up to end(), [oldest(), next()) are
// started, and the later ones wait. It has as many slots as were ever needed at once, so that an
// idle queue pair is small.
class SoftSendRing {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  SoftSendRing(SoftContext* context, const QueuePairOptions& options);

  // kInvalidArgument: the work exceeds a limit.
  absl::Status Check(const SendWork& work) const;
  void Post(const SendWork& work);  // REQUIRES: Check() has passed.

  uint64_t oldest() const { return oldest_; }
  uint64_t next() const { return next_; }
  bool empty() const { return oldest_ == end_; }
  bool any_started() const { return oldest_ != next_; }
  bool any_waits() const { return next_ != end_; }
  bool AnyUnsignaled() const;
  SoftSend& at(uint64_t i) { return slots_[i & mask_]; }
  const SoftSend& at(uint64_t i) const { return slots_[i & mask_]; }
  Entry* entries(uint64_t i) { return &entries_[(i & mask_) * max_entries_]; }
  // The started request with that number, or kNone.
  uint64_t Find(uint32_t sequence) const;

  void Advance() { ++next_; }                        // The next one has been sent.
  SoftSend* TakeOldest() { return &at(oldest_++); }  // Good until the next Post().

  // READs that are started and not answered.
  uint32_t reads_out() const { return reads_out_; }
  void NoteReadStarted() { ++reads_out_; }
  void NoteReadAnswered() { --reads_out_; }

 private:
  void Grow();
  void CopyInline(const SendWork& work, SoftSend* send);

  SoftContext* const context_;
  const uint32_t max_entries_;
  const uint32_t max_inline_bytes_;
  uint64_t mask_;
  std::vector<SoftSend> slots_;
  std::vector<Entry> entries_;
  std::vector<std::unique_ptr<uint8_t[]>> inline_bytes_;  // For each slot that ever had some.
  uint64_t oldest_ = 0;
  uint64_t next_ = 0;
  uint64_t end_ = 0;
  uint32_t reads_out_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_SEND_RING_H_
