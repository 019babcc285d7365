#ifndef TRYST_CHANNEL_RDMA_SERVE_OP_H_
#define TRYST_CHANNEL_RDMA_SERVE_OP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "channel/poller.h"
#include "channel/rdma/wire.h"
#include "channel/trace_span.h"
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
  kCancelling,        // For a take that was cancelled to end.
};
inline constexpr size_t kServeStateCount = static_cast<size_t>(ServeState::kCancelling) + 1;
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

class ServeOp;

class ServeOpOwner {
 public:
  virtual ~ServeOpOwner() = default;
  virtual void OnTaken(ServeOp* op) = 0;
};

// One slot of the producer: from a request to the word that its tensor was accepted.
// Poller thread only, but for Taken().
class ServeOp final : public PollerTask {
 public:
  void Bind(ServeOpOwner* owner, Poller* poller, uint16_t its_slot) {
    owner_ = owner;
    poller_ = poller;
    slot = its_slot;
  }

  // The end of the take, on any thread.
  void Taken(absl::Status its_status, Tensor tensor, bool dead) {
    status = std::move(its_status);
    source.tensor = std::move(tensor);
    is_dead = dead;
    if (poller_->OnThread() && cancel_runs) {
      taken_in_cancel = true;
    } else {
      poller_->Post(this);
    }
  }

  ServeState state = ServeState::kFree;
  TraceSpan span;  // The same with times.
  uint16_t slot = 0;
  ServeRequest request;
  bool in_ready_line = false;
  bool cancel_runs = false;                   // CancelTake() is on the stack;
  bool taken_in_cancel = false;               // and the take has ended in it.
  bool answer_gone = false;                   // kCancelling: the consumer waits for GONE.
  uint32_t replayed_epoch = 0;                // In which the consumer last asked for it.
  absl::optional<Cancellation> cancellation;  // Of the take.
  absl::optional<ServeRequest> next_request;  // kCancelling: what follows on this slot.

  // The outcome of the take, kept until it is accepted.
  absl::Status status;
  bool is_dead = false;
  bool has_digest = false;
  uint32_t digest = 0;
  ServeSource source;

 private:
  void RunOnPoller() override { owner_->OnTaken(this); }

  ServeOpOwner* owner_ = nullptr;
  Poller* poller_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_SERVE_OP_H_
