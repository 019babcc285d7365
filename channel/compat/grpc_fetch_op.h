#ifndef TRYST_CHANNEL_COMPAT_GRPC_FETCH_OP_H_
#define TRYST_CHANNEL_COMPAT_GRPC_FETCH_OP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "channel/compat/fetch_stream.h"
#include "channel/compat/fetch_wire.h"
#include "channel/compat/grpc_channel.h"
#include "channel/ops/fetch_table.h"

namespace tryst {

// The state of a receive's request while it is in a call. It belongs to the request, and passes to
// the next receive of the key when this one ends early.
struct GrpcChannel::Attempt {
  explicit Attempt(uint64_t max_bytes) : incoming(Tensor(), max_bytes) {}

  IncomingTensor incoming;
  FetchStream* stream = nullptr;
  TraceSpan span;
  int64_t retry_at_ns = 0;       // 0: none.
  int64_t failing_since_ns = 0;  // 0: the last attempt succeeded.
  uint64_t received_at_failure = 0;
  // How often the producer answered with another incarnation than was asked for.
  int lives_tried = 0;
  bool digest_was_wrong = false;
  bool fetches = false;  // The producer said that the tensor is there.
  // The call that is out has brought everything, or will bring nothing more.
  bool landed = false;
  bool answered = false;  // The producer said how the fetch failed.
  uint64_t pinned_incarnation = 0;
};

// One receive. Receives of one key wait in line. A tensor that the first one requested goes to the
// one that is first when it arrives. So tensors meet receives in order, whichever receives end
// early.
struct GrpcChannel::FetchOp final : PollerTimer {
  enum class State : uint8_t {
    kNew,         // It may end before it gets a place.
    kBehind,      // It waits behind another receive of its key.
    kInLine,      // It waits for one of max_asked, at a producer that takes no batches.
    kToPark,      // It goes with the next batch.
    kParked,      // It waits for the producer to say that the tensor is there.
    kReady,       // The tensor is there; it waits for a call to fetch it.
    kAsked,       // A call is out.
    kBackingOff,  // The last attempt failed; the next one is at retry_at_ns.
  };

  FetchOp(GrpcChannel* channel, uint64_t id, int64_t step_id, const TensorKey& key,
          const RecvArgs& args, FetchedFn done)
      : channel(channel), id(id), step_id(step_id), key(key), args(args), done(std::move(done)) {}
  void OnTimer() override { channel->OnTimer(this); }

  bool parked() const {
    return state == State::kToPark || state == State::kParked || state == State::kReady;
  }
  bool has_call() const { return state == State::kAsked || state == State::kBackingOff; }
  TraceSpan Span() const;        // What it waits for, and since when.
  FetchState LikeState() const;  // The state of such a fetch over the other transports.

  GrpcChannel* const channel;
  const uint64_t id;
  const int64_t step_id;
  const TensorKey key;
  const RecvArgs args;
  FetchedFn done;
  State state = State::kNew;
  bool may_be_known = false;  // Whether the producer may have seen the request.
  uint64_t serial = 0;        // Its request has it; 0: nothing was requested.
  FetchOp* next = nullptr;    // The next receive of its key.
  FetchOp* prev = nullptr;    // Null: it is the first.
  FetchOp* tail = nullptr;    // In the first: the last of the line.
  int64_t began_ns = 0;
  Cancellation::Token token = Cancellation::kNoToken;
  std::unique_ptr<Attempt> attempt;  // Set while has_call().
};

// The lines in which the receives of one key and step wait, found by the first of each.
class GrpcChannel::KeyLines {
 public:
  // True: it is the first of its line. False: it is kBehind now.
  bool Enter(FetchOp* op) {
    const auto [it, is_first] = firsts_.insert(op);
    if (is_first) {
      op->tail = op;
      return true;
    }
    FetchOp* const first = *it;
    op->state = FetchOp::State::kBehind;
    op->prev = first->tail;
    first->tail->next = op;
    first->tail = op;
    return false;
  }
  // REQUIRES: it is kBehind.
  void LeaveMiddle(FetchOp* op) {
    op->prev->next = op->next;
    if (op->next != nullptr) {
      op->next->prev = op->prev;
    } else {
      (*firsts_.find(op))->tail = op->prev;
    }
  }
  // Removes the first of a line; the next becomes first. Null: there is none.
  FetchOp* LeaveFront(FetchOp* op) {
    FetchOp* const heir = op->next;
    firsts_.erase(op);
    if (heir == nullptr) return nullptr;
    heir->prev = nullptr;
    heir->tail = op->tail;
    firsts_.insert(heir);
    return heir;
  }
  void Shrink() { firsts_ = {}; }  // REQUIRES: all lines are empty.

 private:
  struct Hash {
    size_t operator()(const FetchOp* op) const { return absl::HashOf(op->step_id, op->key); }
  };
  struct Same {
    bool operator()(const FetchOp* a, const FetchOp* b) const {
      return a->step_id == b->step_id && a->key == b->key;
    }
  };
  absl::flat_hash_set<FetchOp*, Hash, Same> firsts_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_GRPC_FETCH_OP_H_
