#ifndef TRYST_CHANNEL_OPS_SERVE_OP_H_
#define TRYST_CHANNEL_OPS_SERVE_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "channel/ops/serve_table.h"
#include "channel/ops/takes.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// The tensors that were taken for a run of keys. Its items are used again.
struct ServeRun {
  struct Item {
    TensorKey key;
    Received taken;
    uint64_t bytes = 0;  // What it takes in the answer.

    void Clear() {
      key = TensorKey();
      taken.tensor.Reset();
      taken.is_dead = false;
      taken.send_context = nullptr;
    }
  };
  std::vector<Item> items;
  size_t used = 0;  // So many of them have a tensor.
};

// One slot of the producer: from a request to the word that its tensor was accepted. It is the
// outcome of its take, until that is accepted or given back. What carries the answer keeps what it
// needs beside this by the slot's number. Poller thread only.
struct ServeOp : TakingOp, Received {
  ServeState state = ServeState::kFree;  // ServeSlots alone changes it.
  bool has_destination = false;          // The consumer has said where the tensor goes.
  bool in_ready_line = false;            // For what carries the answer.
  uint16_t slot = 0;
  uint16_t generation = 0;
  uint64_t asked_epoch = 0;  // The epoch in which the consumer last requested it.
  int64_t step = 0;
  TensorKey key;
  TraceSpan span;  // The times at which it entered its states.

  std::string encoded;  // A string tensor's bytes.
  // A run has met these, and `tensor` holds copies of them.
  ServeRun* run = nullptr;
};

struct ServeCounters {
  uint64_t requests = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t given_back = 0;  // Tensors taken for a fetch that ended early.
  uint64_t resent = 0;      // Tensors sent again after a break or a wrong digest.
  uint64_t parked = 0;      // Requests that waited for their Send without a slot.
  uint64_t bytes = 0;
  uint64_t in_message = 0;  // Tensors sent inside the message or cell.
  // Over a NIC.
  uint64_t direct = 0;  // Tensors written to a destination.
  uint64_t destinations_asked = 0;
  uint64_t standing = 0;  // Requests that were standing receives.
  // Over shared memory.
  uint64_t by_reference = 0;  // Sent without a copy.
  uint64_t staged = 0;        // Sent with one copy, into the arena.
  uint64_t pulled = 0;        // Sent with one copy, by the consumer.
  uint64_t in_parts = 0;      // Sent with two copies.
  uint64_t messages = 0;      // Cells written.

  ServeCounters& operator+=(const ServeCounters& other);
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_OP_H_
