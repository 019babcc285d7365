#ifndef TRYST_CHANNEL_TRACE_LIVE_OPS_H_
#define TRYST_CHANNEL_TRACE_LIVE_OPS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "channel/trace/trace_span.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

// An operation that has not ended, for people.
struct LiveOp {
  TraceRole role = TraceRole::kFetch;
  std::string peer;
  std::string path;
  int64_t step = 0;
  TensorKey key;
  TraceSpan span;      // Its last stamp tells what it waits for, and since when.
  uint64_t bytes = 0;  // 0: unknown yet.
  std::string detail;  // More to say, such as why there is no connection.
};

// Collects the `most` oldest operations of a step. Step -1: of every step.
class LiveOps {
 public:
  explicit LiveOps(size_t most, int64_t step = -1) : most_(most), step_(step) {}

  void Add(LiveOp op);
  size_t left_out() const { return left_out_; }
  // Returns them, oldest first, and leaves this empty.
  std::vector<LiveOp> Take();

 private:
  const size_t most_;
  const int64_t step_;
  std::vector<LiveOp> ops_;  // A heap with the newest in front.
  size_t left_out_ = 0;
};

// One line for each, and one for those left out: "step 7 fetch 12.5 ms (3.0 ms for the producer's
// Send) from /job:ps/replica:0/task:0 by rdma/soft: KEY".
std::string LiveOpsText(const std::vector<LiveOp>& ops, size_t left_out, int64_t now_ns);
// Lists them as an array of JSON objects.
std::string LiveOpsJson(const std::vector<LiveOp>& ops, int64_t now_ns);

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_LIVE_OPS_H_
