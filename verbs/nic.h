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

// The interface of every NIC. The code above it runs unchanged on an RDMA NIC (verbs/ibv), on
// libfabric (verbs/ofi), on plain TCP (verbs/soft) and on virtual time, for tests
// (tests/doubles/sim_nic). One contract suite checks that all of them do what is written here
// (tests/contract/nic_contract.h).
//
// Threads: a Nic's own methods may be called from any thread. A completion queue and the queue
// pairs that use it belong to one thread, and only that thread calls them. A NIC without hardware
// moves bytes inside Poll() and PostSend(): a thread that stops polling stops serving its peers'
// writes, and acknowledging those that it has served.
namespace tryst {

struct NicLimits {
  uint64_t max_message_bytes = 0;     // What one work may have, over all its entries.
  uint32_t max_entries = 0;           // Scatter or gather entries of one work.
  uint32_t max_inline_bytes = 0;      // What one send may have; 0: no inline sends.
  uint32_t max_send_depth = 0;        // Per queue pair.
  uint32_t max_receive_depth = 0;     // Per queue pair.
  uint32_t max_completion_depth = 0;  // Per completion queue.
  uint32_t max_reads_in_flight = 0;   // For each queue pair; 0: there is no READ.
  bool renews_keys = false;           // Region::RenewRemoteKey().
  bool dma_buf = false;
  // Memory that is registered stays in RAM, as a NIC reads and writes it without the processor. If
  // not, a region costs nothing while no peer may write it.
  bool pins_memory = true;
  // RegisterRegion() accepts device memory, if a kernel module finds its owner.
  bool device_pointers = false;
  bool relaxed_ordering = false;
  // What an RDMA NIC has and others may lack. Users check these, and never a NIC's name. `ordered`:
  // what one queue pair posts lands, and is reported, in the order of posting.
  bool ordered = true;
  bool write_with_immediate = true;  // False: kWriteWithImmediate is kInvalidArgument.
  bool tells_length = true;          // False: the receive of an immediate always says 0 bytes.
  // A write of a few words lands in whole aligned words of 4 bytes.
  bool atomic_ack_page = true;
};

enum class PortState { kDown, kActive };

struct NicPort {
  uint8_t number = 1;
  PortState state = PortState::kDown;
  uint32_t mtu_bytes = 0;
  uint64_t bits_per_second = 0;  // 0: unknown.
  std::string address;           // For people: a GID, or host:port.
  std::string description;       // Why this address, this link layer, and this MTU.
};

// What may be done to a region. Local reading is always allowed.
enum Access : uint32_t {
  kLocalOnly = 0,
  kLocalWrite = 1,
  kRemoteWrite = 2,  // Implies kLocalWrite.
  kRemoteRead = 4,
  kRelaxedOrdering = 8,  // A request; a NIC that cannot do it ignores it.
};

// Registered memory. Destroying it deregisters it: afterwards no peer can reach the memory, and a
// work that names it fails. The memory itself stays the caller's. REQUIRES at destruction: no work
// of ours that names it is outstanding.
class Region {
 public:
  virtual ~Region() = default;
  virtual uint64_t address() const = 0;  // As works name it; 0 is possible for a dma-buf.
  virtual uint64_t bytes() const = 0;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
  // Revokes the remote key and makes another. When it has returned, nothing is read or written with
  // the old key any more, not even by an access under way. False, if limits().renews_keys is false:
  // then only destroying the region revokes its key. The local key may change, too. REQUIRES: no
  // work of ours that names it is outstanding.
  virtual bool RenewRemoteKey() { return false; }
};

struct Entry {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t local_key = 0;
};

enum class SendOp : uint8_t {
  kWrite,
  // Consumes one posted receive of the peer, and leaves its entries untouched.
  kWriteWithImmediate,
  // Later works may overtake it: what it brings is there when it has completed, no sooner.
  kRead,
  kSend,
};

struct SendWork {
  uint64_t id = 0;  // Returned in the completion.
  SendOp op = SendOp::kWrite;
  // An unsignaled work completes silently with the next signaled one, unless it fails or is
  // flushed.
  bool signaled = true;
  // The bytes are copied during PostSend(); local keys are not used.
  bool inline_data = false;
  absl::Span<const Entry> entries;  // Needed only until PostSend() returns.
  // What the bytes belong to: for QueuePairOptions::keep, as long as the bytes must be there. Null:
  // nobody can keep them.
  const void* owner = nullptr;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;  // Ignored if no byte is moved.
  uint32_t immediate = 0;   // In host order on both sides; the NIC converts.
};

struct ReceiveWork {
  uint64_t id = 0;
  absl::Span<const Entry> entries;  // May be empty: that is enough for a write with immediate.
};

// How a work ended. docs/ERRORS.md says what we do about each.
enum class CompletionStatus : uint8_t {
  kOk,
  kLocalLength,
  kLocalOperation,
  kLocalProtection,
  kFlushed,  // The queue pair broke first; the bytes may or may not have arrived.
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
  kReceive,                // The peer's send landed in the entries of a receive.
  kReceiveWriteImmediate,  // The peer's write with immediate landed in its region.
};

struct Completion {
  uint64_t id = 0;
  CompletionStatus status = CompletionStatus::kOk;
  CompletionOp op = CompletionOp::kSend;  // Defined for kOk only.
  uint32_t immediate = 0;                 // For kReceiveWriteImmediate only.
  uint32_t queue_pair = 0;                // QueuePair::number().
  uint32_t vendor_error = 0;
  uint64_t bytes = 0;  // Receives only: how many landed.
};

// Finished works of the queue pairs that were made on it. It cannot overrun: a queue pair whose
// depths no longer fit is refused (kResourceExhausted). REQUIRES at destruction: its queue pairs
// are gone.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Takes up to `out.size()` completions, in order for each queue pair; 0: there is none. An error
  // means that the NIC itself is lost.
  virtual absl::StatusOr<size_t> Poll(absl::Span<Completion> out) = 0;
  // Makes event_fd() readable at the next completion, or earlier. To sleep: Arm(), Poll() once
  // more, wait for the descriptor. Arm again after each wake-up.
  virtual absl::Status Arm() = 0;
  // Whether Arm() also makes it readable for earlier completions; then that Poll() is not needed.
  virtual bool ArmTellsAll() const { return false; }
  // For poll(2); the queue owns it. -1: time is virtual.
  virtual int event_fd() const = 0;
};

enum class QueuePairState : uint8_t {
  kReset,    // Receives may be posted; sends may not.
  kReady,    // Connected.
  kBroken,   // By an error or Break(). Everything outstanding will come back with kFlushed.
  kDrained,  // Broken, and every work has come back: no byte can land through it any more.
};

// Keeps what a work's bytes belong to, which then neither goes nor changes.
using KeepOwner = std::shared_ptr<const void> (*)(const void* owner);

struct QueuePairOptions {
  CompletionQueue* completions = nullptr;  // A queue of the Nic that makes the queue pair.
  uint32_t send_depth = 128;
  uint32_t receive_depth = 128;
  uint32_t max_entries = 1;
  uint32_t max_inline_bytes = 0;  // At least this much is granted; otherwise kInvalidArgument.
  uint8_t port = 1;
  // Each attempt takes 4.096 us << ack_timeout, as in the InfiniBand specification.
  uint8_t ack_timeout = 14;
  uint8_t retry_count = 6;      // 7 means "for ever" on some NICs, so it is not used.
  uint8_t rnr_retry_count = 6;  // 7: wait for ever for the peer's receive.
  // For users whose completions need only say that the memory can be reused, because they learn of
  // arrivals in another way. A NIC in software may then complete a write when its bytes have left
  // the process, and acknowledge only as often as needed to keep room. Set it on both sides of a
  // connection, or on neither.
  bool ends_when_left = false;
  // This end should make the connection where either end could: it can reach the other for sure.
  bool dials = false;
  // For NICs in software that hand bytes on and cannot take them back: they copy what they cannot
  // keep. May be null.
  KeepOwner keep = nullptr;
};

// A reliable connection: what is posted arrives once and in order, or the queue pair breaks. It may
// be destroyed with work outstanding: when the destructor has returned, no byte can land through
// it, and none of its works completes any more.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual QueuePairState state() const = 0;
  // Opaque bytes for the peer's Connect(). They are secret, because they may contain a token, so
  // send them only over the authenticated bootstrap.
  virtual std::string LocalAddress() const = 0;
  // kReset -> kReady. Does not wait for the peer: earlier sends wait for it as long as the retries
  // allow. kInvalidArgument: the address is malformed.
  virtual absl::Status Connect(absl::string_view remote_address) = 0;
  // Posts all works with one doorbell, or none. kResourceExhausted: they do not fit in send_room().
  // kInvalidArgument: one exceeds a limit. kFailedPrecondition: reset or broken. A NIC that fails
  // half-way breaks the queue pair (kUnavailable).
  virtual absl::Status PostSend(absl::Span<const SendWork> works) = 0;
  virtual absl::Status PostReceive(absl::Span<const ReceiveWork> works) = 0;
  // How many more can be posted. A work frees its room when its completion is polled; an unsignaled
  // one with the next signaled one.
  virtual uint32_t send_room() const = 0;
  virtual uint32_t receive_room() const = 0;
  // Whether posted sends need another poll to leave: a NIC in software whose socket was full. If
  // not, their bytes arrive even if nobody polls any more.
  virtual bool sends_wait_for_poll() const { return false; }
  // For people: which of several networks it uses, and how. Empty: it has one.
  virtual std::string Networks() const { return std::string(); }
  // Any state -> kBroken. Idempotent.
  virtual void Break() = 0;
};

struct NicEvent {
  enum class Kind : uint8_t {
    kPortUp,
    kPortDown,
    kAddressChanged,
    kDeviceFatal,     // Everything of this Nic is lost; open it again.
    kQueuePairFatal,  // It broke, and not by a work of its own. id: QueuePair::number().
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

  // kInvalidArgument: a null, empty or wrapping range. kResourceExhausted: the NIC or
  // RLIMIT_MEMLOCK has no room; the message says which limit to raise.
  virtual absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                                 uint32_t access) = 0;
  // Registers device memory by its dma-buf. The bytes from `offset` on get the addresses from
  // `remote_base` on. kUnimplemented: limits().dma_buf is false.
  virtual absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset,
                                                                 uint64_t bytes,
                                                                 uint64_t remote_base,
                                                                 uint32_t access) = 0;
  // For memory of this process's device `ordinal`, by its address there. kUnimplemented: this NIC
  // does not reach that device; the message says why.
  virtual absl::Status ReachesDevice(int ordinal) const;
  virtual absl::StatusOr<std::unique_ptr<Region>> RegisterDevice(int ordinal, void* address,
                                                                 uint64_t bytes, uint32_t access);
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(
      uint32_t depth) = 0;
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) = 0;

  // The next asynchronous event, if there is one.
  virtual absl::optional<NicEvent> NextEvent() = 0;
  // Readable when NextEvent() has an event; the Nic owns it. -1: time is virtual.
  virtual int event_fd() const = 0;
};

const char* CompletionStatusName(CompletionStatus status);
const char* QueuePairStateName(QueuePairState state);

}  // namespace tryst

#endif  // TRYST_VERBS_NIC_H_
