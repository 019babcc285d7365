#ifndef TRYST_CHANNEL_GRPC_GRPC_FETCH_OP_H_
#define TRYST_CHANNEL_GRPC_GRPC_FETCH_OP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "channel/grpc/fetch_stream.h"
#include "channel/grpc/fetch_wire.h"
#include "channel/grpc/grpc_channel.h"

namespace tryst {

// What a receive needs beside its place in line while it is asked for by a call. It belongs to
// what was asked, and goes to the next receive of the key when its receive ends early.
struct GrpcChannel::Attempt {
  explicit Attempt(uint64_t max_bytes) : incoming(Tensor(), max_bytes) {}

  IncomingTensor incoming;
  FetchStream* stream = nullptr;
  TraceSpan span;
  int64_t retry_at_ns = 0;       // 0: none.
  int64_t failing_since_ns = 0;  // 0: the last attempt went on.
  uint64_t received_at_failure = 0;
  int attempts = 0;
  int lives_tried = 0;  // Of the producer: how often it answered as another one than was asked.
  bool digest_was_wrong = false;
  bool fetches = false;   // The producer said that it is there.
  bool landed = false;    // All has come, or none will, of the call that is out.
  bool answered = false;  // The producer said how it failed.
  uint64_t pinned_incarnation = 0;
  absl::Status broken;  // While staging: what to end with.
  Tensor staged;
};

// Host memory of the caller's that the bytes can be copied into as they come.
inline Tensor HostDestination(const Args& args) {
  return args.destination.valid() && args.destination.space().host_readable() ? args.destination
                                                                              : Tensor();
}

// One receive. Those of one key stand in line, and what the first one has asked for is for
// whoever is first when it comes: so tensors meet receives in order, whichever end early.
struct GrpcChannel::FetchOp final : PollerTimer {
  enum class State : uint8_t {
    kNew,         // Ends before it gets a place.
    kBehind,      // Another receive of its key.
    kInLine,      // For one of max_asked, at a producer that takes no batches.
    kToPark,      // Goes with the next batch.
    kParked,      // The producer says when it is there.
    kReady,       // It is there; for a call to fetch it.
    kAsked,       // A call is out.
    kBackingOff,  // The last attempt failed; the next is at retry_at_ns.
    kStaging,     // Landed on the host; a copy to where it belongs runs.
  };

  FetchOp(GrpcChannel* channel, uint64_t id, int64_t step_id, const TensorKey& key,
          const Args& args, DoneFn done)
      : channel(channel), id(id), step_id(step_id), key(key), args(args), done(std::move(done)) {}
  void OnTimer() override { channel->OnTimer(this); }

  bool parked() const {
    return state == State::kToPark || state == State::kParked || state == State::kReady;
  }
  bool has_call() const {
    return state == State::kAsked || state == State::kBackingOff || state == State::kStaging;
  }

  GrpcChannel* const channel;
  const uint64_t id;
  const int64_t step_id;
  const TensorKey key;
  const Args args;
  DoneFn done;
  State state = State::kNew;
  bool may_be_known = false;  // The producer may have seen what was asked.
  uint64_t serial = 0;        // Of what was asked; 0: nothing was.
  FetchOp* next = nullptr;    // Behind it, of its key.
  FetchOp* prev = nullptr;    // Null: it is the first.
  FetchOp* tail = nullptr;    // Of the first: the last.
  int64_t began_ns = 0;
  Cancellation::Token token = Cancellation::kNoToken;
  std::unique_ptr<Attempt> attempt;  // While has_call().
};

// The lines in which receives of one key and step stand, by who is first in each.
class GrpcChannel::KeyLines {
 public:
  // True: it is the first of its line. Else it is kBehind.
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
  // One that is kBehind.
  void LeaveMiddle(FetchOp* op) {
    op->prev->next = op->next;
    if (op->next != nullptr) {
      op->next->prev = op->prev;
    } else {
      (*firsts_.find(op))->tail = op->prev;
    }
  }
  // The first leaves; the next is first. Null: there is none.
  FetchOp* LeaveFront(FetchOp* op) {
    FetchOp* const heir = op->next;
    firsts_.erase(op);
    if (heir == nullptr) return nullptr;
    heir->prev = nullptr;
    heir->tail = op->tail;
    firsts_.insert(heir);
    return heir;
  }
  void Shrink() { firsts_ = {}; }  // REQUIRES: nobody stands in any.

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

#endif  // TRYST_CHANNEL_GRPC_GRPC_FETCH_OP_H_
