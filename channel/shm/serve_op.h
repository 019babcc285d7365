#ifndef TRYST_CHANNEL_SHM_SERVE_OP_H_
#define TRYST_CHANNEL_SHM_SERVE_OP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "channel/poller/poller.h"
#include "channel/shm/key_line.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// What the serving of a request waits for.
enum class ShmServeState : uint8_t {
  kFree,     // For a request on this slot.
  kTaking,   // For the local Send.
  kReady,    // For room: in the ring, in the arena, or for a reference.
  kStaging,  // For its bytes to be copied into the arena, a part in each turn.
  kInParts,  // For room for its next part.
  kPulled,   // For the consumer to have read the bytes out of our own memory.
  kSent,     // For the consumer to accept it; until then it can be given back.
};
inline constexpr size_t kShmServeStateCount = static_cast<size_t>(ShmServeState::kSent) + 1;
const char* ShmServeStateName(ShmServeState state);

struct ShmRequest {
  uint32_t generation = 0;
  uint8_t flags = 0;
  int64_t step = 0;
  TensorKey key;
};

// What a take got, and what giving it back needs.
struct ShmTaken {
  Tensor tensor;
  bool is_dead = false;
  std::shared_ptr<DeviceContext> device_context;
  AllocatorAttributes alloc_attrs;
  uint64_t turn = 0;

  void MoveFrom(Taken* from) {
    tensor = std::move(from->tensor);
    is_dead = from->is_dead;
    device_context = std::move(from->send_args.device_context);
    alloc_attrs = from->send_args.alloc_attrs;
    turn = from->turn;
  }
  Taken ToGiveBack() {
    Taken taken;
    taken.tensor = std::move(tensor);
    taken.is_dead = is_dead;
    taken.send_args.device_context = std::move(device_context);
    taken.send_args.alloc_attrs = alloc_attrs;
    taken.turn = turn;
    return taken;
  }
};

class ShmServeTakeOwner {
 public:
  virtual ~ShmServeTakeOwner() = default;
  virtual void OnTaken(ShmServeTake* take) = 0;
};

// One take from the local rendezvous, from its start until the poller has seen its end. Of a
// pool. Poller thread only, but for End().
class ShmServeTake final : public PollerTask {
 public:
  ShmServeTake(ShmServeTakeOwner* owner, Poller* poller) : owner_(owner), poller_(poller) {
    Renew();
    args.turn = &taken.turn;
  }
  // A cancellation is good for once.
  void Renew() {
    cancellation = std::make_unique<Cancellation>();
    args.cancellation = cancellation.get();
  }

  // On any thread.
  void End(absl::Status its_status, const Args& send_args, Tensor tensor, bool is_dead) {
    status = std::move(its_status);
    taken.tensor = std::move(tensor);
    taken.is_dead = is_dead;
    taken.device_context = send_args.device_context;
    taken.alloc_attrs = send_args.alloc_attrs;
    const bool here = poller_->OnThread();
    ended.store(true, std::memory_order_release);
    if (!here) {
      poller_->Post(this);
    } else if (in_call) {
      ended_here = true;
    } else {
      owner_->OnTaken(this);
    }
  }

  ShmKeyLine* line = nullptr;
  ShmServeTake* next = nullptr;
  ShmServeTake* prev = nullptr;
  bool dropped = false;  // Cancelled: it may have met a tensor by then.
  bool over = false;     // The poller has heard of its end.
  std::unique_ptr<Cancellation> cancellation;
  Args args;                       // Of the take: the same each time.
  bool in_call = false;            // A call to the rendezvous is on the poller's stack,
  bool ended_here = false;         // and it has ended in it.
  std::atomic<bool> ended{false};  // What follows is written.
  absl::Status status;
  ShmTaken taken;

 private:
  void RunOnPoller() override { owner_->OnTaken(this); }

  ShmServeTakeOwner* const owner_;
  Poller* const poller_;
};

// A tensor that the consumer wants and has no slot for yet: until it claims it with one.
struct ShmServeWant {
  ShmWaiter waiter;
  uint64_t serial = 0;
  uint64_t order = 0;  // As ShmServeOp::order.
  int64_t since_ns = 0;
  int64_t step = 0;
  TensorKey key;
  uint32_t key_id = 0;
  std::unique_ptr<ShmTaken> here;  // Null: it is waited for.
};

// One slot of the producer: from a request to the word that its tensor was accepted.
// Poller thread only.
struct ShmServeOp {
  ShmServeState state = ShmServeState::kFree;
  TraceSpan span;  // The same with times.
  uint16_t slot = 0;
  ShmRequest request;
  bool in_ready_line = false;
  ShmWaiter waiter;     // kTaking.
  uint32_t key_id = 0;  // By which the consumer named the key,
  uint64_t order = 0;   // and which of all its requests this is.

  // The outcome of the take, until it is accepted or given back.
  absl::Status status;
  ShmTaken taken;
  std::string encoded;  // A string tensor's bytes.
  StorageRef stage;     // kStaging: where they are copied to.
  uint64_t position = 0;
  uint64_t sent_bytes = 0;
  uint32_t digest = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_OP_H_
