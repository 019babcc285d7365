#ifndef TRYST_VERBS_NIC_H_
#define TRYST_VERBS_NIC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

// The seam. Everything above it runs alike on an RDMA NIC (verbs/ibv), on libfabric
// (verbs/ofi), on plain TCP (verbs/soft) and in the simulator (verbs/sim); one contract
// suite holds them all to what is written here (tests/contract/nic_contract.h).
//
// Threads: a Nic's own methods may be called from any thread. A completion queue and
// the queue pairs that use it belong to one thread, which alone calls them. A NIC
// without hardware moves bytes inside Poll() and PostSend(): a thread that stops
// polling stops serving its peers' writes, and acknowledging those it has served.
namespace tryst {

struct NicLimits {
  uint64_t max_message_bytes = 0;     // In one work, over all its entries.
  uint32_t max_entries = 0;           // Scatter or gather entries of one work.
  uint32_t max_inline_bytes = 0;      // Of one send; 0: no inline sends.
  uint32_t max_send_depth = 0;        // Per queue pair.
  uint32_t max_receive_depth = 0;     // Per queue pair.
  uint32_t max_completion_depth = 0;  // Per completion queue.
  uint32_t max_reads_in_flight = 0;   // Per queue pair; 0: no READ.
  bool memory_windows = false;        // Type 2.
  bool renews_keys = false;           // Region::RenewRemoteKey().
  bool dma_buf = false;
  bool device_pointers = false;  // RegisterRegion() takes them, if a kernel module knows whose.
  bool relaxed_ordering = false;
  // What an RDMA NIC gives and others may lack. Their users ask; they never guess by name.
  // What one queue pair posts lands, and is told, in the order of posting.
  bool ordered = true;
  bool write_with_immediate = true;  // False: kWriteWithImmediate is kInvalidArgument.
  // A write of a few words lands by whole aligned words of 4 bytes.
  bool atomic_ack_page = true;
};

enum class PortState { kDown, kActive };

struct NicPort {
  uint8_t number = 1;
  PortState state = PortState::kDown;
  uint32_t mtu_bytes = 0;
  uint64_t bits_per_second = 0;  // 0: unknown.
  std::string address;           // For people: a GID or host:port.
  std::string description;       // Why this address, this link layer, this MTU.
};

// What may be done to a region. Local reading always may.
enum Access : uint32_t {
  kLocalOnly = 0,
  kLocalWrite = 1,
  kRemoteWrite = 2,  // Implies kLocalWrite.
  kRemoteRead = 4,
  kBindWindow = 8,        // Memory windows may be bound over it.
  kRelaxedOrdering = 16,  // A wish: dropped where the NIC cannot.
};

// Registered memory. Destroying it deregisters: afterwards no peer can reach it and a
// work that names it fails. The memory itself stays the caller's.
// REQUIRES at destruction: no work of ours that names it is outstanding.
class Region {
 public:
  virtual ~Region() = default;
  virtual uint64_t address() const = 0;  // As a work names it; a dma-buf's may be 0.
  virtual uint64_t bytes() const = 0;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
  // Ends the remote key and makes another: when it has returned nothing is read or written by the
  // former any more, be it half-way through. False, where limits().renews_keys is: only destroying
  // the region ends its key. The local key may change, too.
  // REQUIRES: no work of ours that names it is outstanding; no window is bound over it.
  virtual bool RenewRemoteKey() { return false; }
};

// A revocable, narrower remote key over part of a region (type 2): bound and
// invalidated in order with the other sends of a queue pair, through which alone it
// then opens anything. A bound one must be invalidated before it is bound again.
class Window {
 public:
  virtual ~Window() = default;
  // The key that the last bind gave; it changes with each bind.
  virtual uint32_t remote_key() const = 0;
};

struct Entry {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t local_key = 0;
};

enum class SendOp : uint8_t {
  kWrite,
  kWriteWithImmediate,  // Takes one posted receive of the peer; its entries are not touched.
  kRead,
  kSend,
  kSendWithImmediate,
  kBindWindow,  // Uses window, window_region, remote_address, entries[0].bytes, window_access.
  kInvalidateWindow,  // Uses window.
};

struct SendWork {
  uint64_t id = 0;  // Given back in the completion.
  SendOp op = SendOp::kWrite;
  // An unsignaled work completes silently with the next signaled one, unless it fails or
  // is flushed.
  bool signaled = true;
  bool fence = false;               // Starts only when earlier READs of this queue pair have ended.
  bool inline_data = false;         // The bytes are taken during PostSend; local keys are not used.
  absl::Span<const Entry> entries;  // Lasts until PostSend returns.
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;  // Not looked at where no byte is moved.
  uint32_t immediate = 0;   // In host order on both sides; the NIC converts.
  Window* window = nullptr;
  Region* window_region = nullptr;
  uint32_t window_access = 0;
};

struct ReceiveWork {
  uint64_t id = 0;
  absl::Span<const Entry> entries;  // May be empty: enough for a write with immediate.
};

// How a work ended. docs/ERRORS.md says what we do about each.
enum class CompletionStatus : uint8_t {
  kOk,
  kLocalLength,
  kLocalOperation,
  kLocalProtection,
  kFlushed,  // The queue pair broke first; the bytes may or may not have arrived.
  kWindowBind,
  kBadResponse,
  kLocalAccess,
  kRemoteInvalidRequest,
  kRemoteAccess,
  kRemoteOperation,
  kRetryExceeded,     // The peer does not answer.
  kReceiverNotReady,  // The peer posted no receive in time.
  kRemoteAborted,
  kFatal,
  kResponseTimeout,
  kGeneral,
};
inline constexpr int kCompletionStatusCount = static_cast<int>(CompletionStatus::kGeneral) + 1;

enum class CompletionOp : uint8_t {
  kSend,  // Any SendOp of ours that writes or sends.
  kRead,
  kWindow,
  kReceive,                // A send of the peer's landed in a receive's entries.
  kReceiveWriteImmediate,  // A write with immediate of the peer's landed in its region.
};

struct Completion {
  uint64_t id = 0;
  CompletionStatus status = CompletionStatus::kOk;
  CompletionOp op = CompletionOp::kSend;  // Defined for kOk only.
  bool has_immediate = false;
  uint32_t immediate = 0;
  uint32_t queue_pair = 0;  // QueuePair::number().
  uint32_t vendor_error = 0;
  uint64_t bytes = 0;  // Receives only: how many landed.
};

// Finished works of the queue pairs made on it. Cannot overrun: a queue pair is
// refused when its depths no longer fit (kResourceExhausted).
// REQUIRES at destruction: its queue pairs are gone.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Takes up to `out.size()` completions, in the order of each queue pair; 0 when
  // there is none. An error means that the NIC itself is lost.
  virtual absl::StatusOr<size_t> Poll(absl::Span<Completion> out) = 0;
  // Makes event_fd() readable at the next completion (or sooner). To sleep: Arm, Poll
  // once more, wait for the descriptor. Arm again after each wake-up.
  virtual absl::Status Arm() = 0;
  // Whether that makes it readable by what has come before, too: then it takes no Poll.
  virtual bool ArmTellsAll() const { return false; }
  // For poll(2); owned by the queue. -1 where time is virtual.
  virtual int event_fd() const = 0;
};

enum class QueuePairState : uint8_t {
  kReset,    // Receives may be posted; sends may not.
  kReady,    // Connected.
  kBroken,   // By an error or Break(). Everything outstanding is on its way back, kFlushed.
  kDrained,  // Broken, and every work has come back: no byte can land through it any more.
};

struct QueuePairOptions {
  CompletionQueue* completions = nullptr;  // Of the same Nic.
  uint32_t send_depth = 128;
  uint32_t receive_depth = 128;
  uint32_t max_entries = 1;
  uint32_t max_inline_bytes = 0;  // Granted at least this, or kInvalidArgument.
  uint8_t port = 1;
  // 4.096 us << timeout an attempt, as the InfiniBand specification has it.
  uint8_t ack_timeout = 14;
  uint8_t retry_count = 6;      // 7 means for ever on some NICs; not used.
  uint8_t rnr_retry_count = 6;  // 7: wait for ever for the peer's receive.
  // For who sends to get the memory back and hears otherwise of what arrives: a NIC in software
  // may end a write once its bytes have left this process, and the peer's says what has landed
  // only so often that no room runs out. Both sides of a connection or neither.
  bool ends_when_left = false;
};

// A reliable connection: what is posted arrives in order, once, or the queue pair
// breaks. Destroying it with work outstanding is allowed: when the destructor has
// returned no byte can land through it and none of its works completes any more.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual QueuePairState state() const = 0;
  // Opaque bytes for the peer's Connect(). Secret (they may hold a token): they travel
  // over the authenticated bootstrap only.
  virtual std::string LocalAddress() const = 0;
  // kReset -> kReady. Does not wait for the peer: sends posted before it is there wait
  // for it as long as the retries allow. A bad address is kInvalidArgument.
  virtual absl::Status Connect(absl::string_view remote_address) = 0;
  // Posts all with one doorbell, or none: kResourceExhausted when they do not fit in
  // send_room(), kInvalidArgument for one over the limits, kFailedPrecondition when
  // reset or broken. A NIC that fails half-way breaks the queue pair (kUnavailable).
  virtual absl::Status PostSend(absl::Span<const SendWork> works) = 0;
  virtual absl::Status PostReceive(absl::Span<const ReceiveWork> works) = 0;
  // How many more can be posted. Room comes back when the completion is polled; an
  // unsignaled work's with the next signaled one.
  virtual uint32_t send_room() const = 0;
  virtual uint32_t receive_room() const = 0;
  // Whether posted sends leave only when the queue is polled again: a NIC in software whose
  // socket was full. If not, their bytes arrive even if nobody polls any more.
  virtual bool sends_wait_for_poll() const { return false; }
  // Any state -> kBroken. Idempotent.
  virtual void Break() = 0;
};

struct NicEvent {
  enum class Kind : uint8_t {
    kPortUp,
    kPortDown,
    kAddressChanged,
    kDeviceFatal,     // Everything of this Nic is lost; open it anew.
    kQueuePairFatal,  // Broken, and by no work of its own. id: QueuePair::number().
    kCompletionQueueFatal,
  };
  Kind kind = Kind::kPortUp;
  uint8_t port = 0;
  uint32_t id = 0;
};

// REQUIRES at destruction: everything made from it is gone.
class Nic {
 public:
  virtual ~Nic() = default;
  virtual std::string name() const = 0;  // "mlx5_0", "soft", "sim3".
  virtual const NicLimits& limits() const = 0;
  virtual std::vector<NicPort> Ports() const = 0;

  // kInvalidArgument: null, empty or wrapping range. kResourceExhausted: the NIC or
  // RLIMIT_MEMLOCK has no more; the message says which limit to raise.
  virtual absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                                 uint32_t access) = 0;
  // Device memory by its dma-buf; the bytes from `offset` become `remote_base` onwards.
  // kUnimplemented where limits().dma_buf is false.
  virtual absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset,
                                                                 uint64_t bytes,
                                                                 uint64_t remote_base,
                                                                 uint32_t access) = 0;
  // Memory of this process's device `ordinal`, by its address there. kUnimplemented: this NIC
  // does not reach that device, and why.
  virtual absl::Status ReachesDevice(int ordinal) const;
  virtual absl::StatusOr<std::unique_ptr<Region>> RegisterDevice(int ordinal, void* address,
                                                                 uint64_t bytes, uint32_t access);
  // kUnimplemented where limits().memory_windows is false.
  virtual absl::StatusOr<std::unique_ptr<Window>> CreateWindow() = 0;
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(
      uint32_t depth) = 0;
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) = 0;

  // The next asynchronous event, if one is waiting.
  virtual absl::optional<NicEvent> NextEvent() = 0;
  // Readable when NextEvent() has one; owned by the Nic. -1 where time is virtual.
  virtual int event_fd() const = 0;
};

const char* CompletionStatusName(CompletionStatus status);
const char* QueuePairStateName(QueuePairState state);

}  // namespace tryst

#endif  // TRYST_VERBS_NIC_H_
