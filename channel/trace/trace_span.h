#ifndef TRYST_CHANNEL_TRACE_TRACE_SPAN_H_
#define TRYST_CHANNEL_TRACE_TRACE_SPAN_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tryst {

// What an operation waits for. Traces, lists of waiting operations and metrics all use these words.
enum class WaitsFor : uint8_t {
  kNothing,      // It has not begun, or has ended.
  kConnection,   // The peer's answer to our hello, or the pause before the next hello.
  kSlot,         // A request slot: all are in use.
  kPeerSend,     // The producer's Send, and the tensor's transfer.
  kLandingRoom,  // Landing memory: the peer has the tensor and has said how large it is.
  kParts,        // Parts of the tensor on other queue pairs.
  kLastWord,     // The peer's last word on a slot that we gave up.
  kDrain,        // A broken queue pair must drain.
  kRetry,        // The pause after a failed attempt.
  kCopy,         // A copy between memories.
  kExecutor,     // The caller's executor must run the callback.
  kLocalSend,    // Serving: our own Send.
  kWireRoom,     // Serving: room in the message ring or the send queue.
  kDestination,  // Serving: the consumer must say where a large tensor goes.
  kCompletion,   // Serving: the NIC must be done with our memory.
  kAcceptance,   // Serving: the consumer must say that it has the tensor.
  kConsumer,     // Serving: a consumer whose connection broke must come back.
};
inline constexpr size_t kWaitsForCount = static_cast<size_t>(WaitsFor::kConsumer) + 1;
// "peer_send", for metrics and JSON.
absl::string_view WaitsForName(WaitsFor what);
// "the producer's Send", to follow "waits for ".
absl::string_view WaitsForText(WaitsFor what);

enum class TraceRole : uint8_t { kFetch, kServe };

// A number by which both ends identify one fetch. Both compute it from the connection's number, the
// operation's number in it, and the step. Never 0.
inline uint64_t TraceId(uint64_t connection, uint64_t operation, int64_t step) {
  // The factors keep the three apart; SplitMix64's finalizer spreads them. Both ends pay it for
  // each fetch.
  uint64_t id = connection + operation * 0xd6e8feb86659fd93u +
                static_cast<uint64_t>(step) * 0xa0761d6478bd642fu + 0x9e3779b97f4a7c15u;
  id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9u;
  id = (id ^ (id >> 27)) * 0x94d049bb133111ebu;
  id ^= id >> 31;
  return id != 0 ? id : 1;
}

// When one operation began to wait for what. It is a part of the operation, and costs a store for
// each transition. Only its owner's thread uses it.
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
  // From now on it waits for `what`. After kStamps transitions the last stamp is replaced.
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
  void set_lost(uint16_t lost) { lost_ = lost; }  // For a span that came from another worker.

  uint64_t id = 0;  // TraceId(), once it is known; 0: none yet.

 private:
  friend class Trace;
  static constexpr uint64_t kDeltaMask = (uint64_t{1} << 56) - 1;

  void Push(WaitsFor what, int64_t now_ns) {
    const int64_t delta = now_ns > began_ns_ ? now_ns - began_ns_ : 0;
    stamps_[count_++] = static_cast<uint64_t>(what) << 56 | static_cast<uint64_t>(delta);
  }

  int64_t began_ns_ = 0;
  // Each: what, and nanoseconds since it began. count_ are used.
  std::array<uint64_t, kStamps> stamps_;
  uint16_t count_ = 0;
  uint16_t lost_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_TRACE_SPAN_H_
