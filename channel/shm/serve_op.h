#ifndef TRYST_CHANNEL_SHM_SERVE_OP_H_
#define TRYST_CHANNEL_SHM_SERVE_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "channel/ops/serve_table.h"
#include "channel/ops/takes.h"
#include "channel/shm/read_gauge.h"
#include "channel/trace/trace_span.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct ShmRequest {
  uint32_t generation = 0;
  uint8_t flags = 0;
  int64_t step = 0;
  uint64_t ticket = 0;  // 0: none.
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
    if (from->send_args.device_context != nullptr) {
      device_context = std::move(from->send_args.device_context);
    }
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

// One slot of the producer: from a request to the word that its tensor was accepted.
// Poller thread only.
struct ShmServeOp : TakingOp {
  ServeState state = ServeState::kFree;
  TraceSpan span;  // The same with times.
  uint16_t slot = 0;
  ShmRequest request;
  bool in_ready_line = false;

  // The outcome of the take, until it is accepted or given back.
  absl::Status status;
  ShmTaken taken;
  std::string encoded;  // A string tensor's bytes.
  StorageRef stage;     // kStaging: where they are copied to.
  uint64_t position = 0;
  uint64_t sent_bytes = 0;
  uint32_t digest = 0;
  ReadGauge* gauge = nullptr;  // Measures its way; null: nobody does.
  ReadGauge::Trip trip;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_OP_H_
