#ifndef TRYST_CHANNEL_TRACE_TRACE_SPAN_H_
#define TRYST_CHANNEL_TRACE_TRACE_SPAN_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tryst {

// What an operation waits for. Everything that shows waiting uses these words: traces,
// lists of who waits, metrics.
enum class WaitsFor : uint8_t {
  kNothing,      // Not begun, or over.
  kConnection,   // The peer's answer to our hello, or the pause before the next one.
  kSlot,         // One of the request slots: so many are out already.
  kPeerSend,     // The producer's Send, and the tensor's way here.
  kLandingRoom,  // Landing memory: the peer has the tensor and said how large it is.
  kParts,        // Parts of the tensor on other queue pairs.
  kLastWord,     // The peer's last word on a slot that we gave up.
  kDrain,        // A broken queue pair to drain.
  kRetry,        // The pause after a failed attempt.
  kCopy,         // A copy between memories.
  kExecutor,     // The caller's executor to run the callback.
  kLocalSend,    // Serving: our own Send.
  kWireRoom,     // Serving: credit: room in the message ring or the send queue.
  kDestination,  // Serving: the consumer to say where a large tensor goes.
  kCompletion,   // Serving: the NIC to be done with our memory.
  kAcceptance,   // Serving: the consumer to say that it has the tensor.
  kConsumer,     // Serving: a consumer whose connection broke to come back.
};
inline constexpr size_t kWaitsForCount = static_cast<size_t>(WaitsFor::kConsumer) + 1;
// "peer_send": for metrics and JSON.
absl::string_view WaitsForName(WaitsFor what);
// "the producer's Send": after "waits for ".
absl::string_view WaitsForText(WaitsFor what);

enum class TraceRole : uint8_t { kFetch, kServe };

// The number by which both ends know one fetch, from what they both know of it: a number
// of the connection, one of the operation in it, and the step. Never 0.
uint64_t TraceId(uint64_t connection, uint64_t operation, int64_t step);

// When one operation began to wait for what. Lives in the operation; costs a store for each
// transition. Its owner's thread only.
class TraceSpan {
 public:
  static constexpr size_t kStamps = 8;
  struct Stamp {
    WaitsFor what;
    int64_t at_ns;
  };

  void Begin(WaitsFor what, int64_t now_ns) {
    began_ns_ = now_ns;
    id = 0;
    count_ = 0;
    lost_ = 0;
    Push(what, now_ns);
  }
  // From now on it waits for `what`. Past kStamps transitions the last one is replaced.
  void Enter(WaitsFor what, int64_t now_ns) {
    if (waits_for() == what) return;
    if (count_ == kStamps) {
      --count_;
      ++lost_;
    }
    Push(what, now_ns);
  }

  WaitsFor waits_for() const { return count_ == 0 ? WaitsFor::kNothing : stamp(count_ - 1).what; }
  int64_t since_ns() const { return count_ == 0 ? began_ns_ : stamp(count_ - 1).at_ns; }
  int64_t began_ns() const { return began_ns_; }
  size_t count() const { return count_; }
  Stamp stamp(size_t i) const {
    return {static_cast<WaitsFor>(stamps_[i] >> 56),
            began_ns_ + static_cast<int64_t>(stamps_[i] & kDeltaMask)};
  }
  uint16_t lost() const { return lost_; }
  void set_lost(uint16_t lost) { lost_ = lost; }  // Of a span that came from elsewhere.

  uint64_t id = 0;  // TraceId(), once it is known; 0: it has none.

 private:
  friend class Trace;
  static constexpr uint64_t kDeltaMask = (uint64_t{1} << 56) - 1;

  void Push(WaitsFor what, int64_t now_ns) {
    const int64_t delta = now_ns > began_ns_ ? now_ns - began_ns_ : 0;
    stamps_[count_++] = static_cast<uint64_t>(what) << 56 | static_cast<uint64_t>(delta);
  }

  int64_t began_ns_ = 0;
  std::array<uint64_t, kStamps> stamps_;  // What, and nanoseconds since it began; count_ of them.
  uint16_t count_ = 0;
  uint16_t lost_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_TRACE_SPAN_H_
