#ifndef TRYST_CHANNEL_RDMA_SERVE_OP_H_
#define TRYST_CHANNEL_RDMA_SERVE_OP_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "channel/poller/poller.h"
#include "channel/rdma/wire.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"
#include "verbs/nic.h"

namespace tryst {

// What the serving of a request waits for.
enum class ServeState : uint8_t {
  kFree,              // For a request on this slot.
  kTaking,            // For the local Send.
  kReady,             // For room on the wire: the outcome is here.
  kNeedsDestination,  // For the consumer: it was told how large the tensor is.
  kSent,              // For the consumer to accept it; until then it can be sent again.
};
inline constexpr size_t kServeStateCount = static_cast<size_t>(ServeState::kSent) + 1;
const char* ServeStateName(ServeState state);

inline constexpr size_t kMaxLanes = 8;
using LaneTickets = std::array<uint64_t, kMaxLanes>;

// What the NIC reads while it sends a tensor.
struct ServeSource {
  Tensor tensor;
  std::string encoded;                        // A string tensor's bytes.
  std::unique_ptr<Region> region;             // Over one of the two.
  LaneTickets tickets{};                      // The last write on each queue pair.
  std::array<uint64_t, kMaxLanes> written{};  // How much of its part is on its way.
};

struct ServeRequest {
  uint16_t generation = 0;
  uint8_t flags = 0;
  TensorKey key;
  wire::RequestBody body;
};

struct ServeOp;
class ServeTake;

class ServeTakeOwner {
 public:
  virtual ~ServeTakeOwner() = default;
  virtual void OnTaken(ServeTake* take) = 0;
};

// One take from the local rendezvous, from its start until the poller has seen its end.
// An op that no longer wants it lets go of it at once, so that what follows on the slot
// has its turn now. Of a pool. Poller thread only, but for End().
class ServeTake final : public PollerTask {
 public:
  ServeTake(ServeTakeOwner* owner, Poller* poller) : owner_(owner), poller_(poller) {}

  // On any thread.
  void End(absl::Status its_status, const Args& send_args, Tensor tensor, bool is_dead) {
    status = std::move(its_status);
    taken.tensor = std::move(tensor);
    taken.is_dead = is_dead;
    taken.send_args = send_args;
    ended.store(true, std::memory_order_release);
    poller_->Post(this);
  }

  ServeOp* op = nullptr;  // Null: it is parked, or nobody wants it any more.
  uint64_t ticket = 0;    // Parked: the number under which the consumer waits for it.
  uint32_t epoch = 0;     // In which the consumer last spoke of the ticket.
  int64_t since_ns = 0;   // Parked: since when the request waits.
  bool dropped = false;   // Nobody wants it: what follows waits for its end.
  bool here = false;      // Parked, and what follows is written and seen.
  int64_t step = 0;
  TensorKey key;
  absl::optional<Cancellation> cancellation;
  std::atomic<bool> ended{false};  // What follows is written, although nobody has heard of it.
  absl::Status status;
  Taken taken;

 private:
  void RunOnPoller() override { owner_->OnTaken(this); }

  ServeTakeOwner* const owner_;
  Poller* const poller_;
};

// One slot of the producer: from a request to the word that its tensor was accepted.
// Poller thread only.
struct ServeOp {
  ServeState state = ServeState::kFree;
  TraceSpan span;  // The same with times.
  uint16_t slot = 0;
  ServeRequest request;
  bool in_ready_line = false;
  uint32_t replayed_epoch = 0;  // In which the consumer last asked for it.
  ServeTake* take = nullptr;    // kTaking.

  // The outcome of the take, kept until it is accepted.
  absl::Status status;
  Args send_args;     // For giving it back,
  uint64_t turn = 0;  // in its place.
  bool is_dead = false;
  bool has_digest = false;
  uint32_t digest = 0;
  ServeSource source;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_OP_H_
