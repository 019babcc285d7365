#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_TRACE_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tryst {

enum class TraceKind : uint8_t {
  kOpen,         // a: 1 if it takes the place of a killed NIC.
  kKill,         // A peer died with all of its NIC's state.
  kRegister,     // a: bytes, b: access.
  kDeregister,   // a: bytes.
  kConnect,      // a: the peer's queue pair.
  kPostSend,     // a: operation, b: bytes.
  kPostReceive,  // a: how many.
  kTransmit,     // a: sequence, b: bytes.
  kArrive,       // a: packet kind, b: sequence.
  kDrop,         // a: packet kind, b: sequence.
  kLand,         // a: offset in the message, b: bytes.
  kRetry,        // a: from sequence, b: attempts so far.
  kComplete,     // a: 0 send, 1 receive; b: status. Into the completion queue.
  kBreak,        // a: 1 when by an error.
  kStopped,      // No byte lands through it any more.
  kDestroy,      // A queue pair.
  kFault,        // a: what, b: its detail.
  kNicEvent,     // a: NicEvent::Kind, b: its port or id.
  kTimer,        // A scheduled call ran.
  kMark,         // By the test: a and b are its own.
};

// A hash of all events as they happen, and the last records, for people. It contains no address of
// this process, so equal seeds give equal traces.
class SimTrace {
 public:
  explicit SimTrace(size_t tail_records) : tail_(tail_records) {}

  // `who` is the number of a queue pair or a NIC in the world.
  void Add(int64_t at_ns, TraceKind kind, uint32_t who, uint64_t a = 0, uint64_t b = 0);

  uint64_t hash() const { return hash_; }    // All records so far are in it.
  uint64_t count() const { return count_; }  // Records so far.
  // The last records, oldest first, one a line; at most `lines`.
  std::string Tail(size_t lines) const;

 private:
  struct Record {
    int64_t at_ns;
    uint64_t a;
    uint64_t b;
    uint32_t who;
    TraceKind kind;
  };

  uint64_t hash_ = 0x5472797374u;
  uint64_t count_ = 0;
  std::vector<Record> tail_;  // A ring.
};

const char* TraceKindName(TraceKind kind);

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_TRACE_H_
