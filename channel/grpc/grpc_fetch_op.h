#ifndef TRYST_CHANNEL_GRPC_GRPC_FETCH_OP_H_
#define TRYST_CHANNEL_GRPC_GRPC_FETCH_OP_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

// What one call asks for that waits until any of all that was asked so is there.
struct GrpcChannel::Batch {
  explicit Batch(uint64_t max_bytes) : incoming(Tensor(), max_bytes) {}
  IncomingTensor incoming;
  struct Ask {
    uint64_t serial;
    bool may_be_known;  // From before.
  };
  std::vector<Ask> asks;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_GRPC_FETCH_OP_H_
