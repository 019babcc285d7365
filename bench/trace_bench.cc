// Measures what tracing and counting add to an operation: a pull's time stamps, and its end.
#include <cstdint>
#include <string>

#include "benchmark/benchmark.h"
#include "channel/trace/trace.h"

namespace tryst {
namespace {

// The trace keeps one operation in `state.range(0)`. 0: it keeps and counts none.
void Pull(benchmark::State& state) {
  TraceOptions options;
  if (state.range(0) > 0) options.sample_every = static_cast<uint32_t>(state.range(0));
  Trace trace(options);
  TraceTrack* track = trace.Track(TraceRole::kFetch, "/job:ps/replica:0/task:0", "rdma/soft");
  const TensorKey key = *TensorKey::Parse(
      "/job:ps/replica:0/task:0/device:CPU:0;0000000000000001;"
      "/job:worker/replica:0/task:0/device:CPU:0;edge_17_weights;0:0");
  int64_t now_ns = 1;
  uint64_t slot = 0;
  for (auto _ : state) {
    TraceSpan span;
    span.Begin(WaitsFor::kSlot, now_ns);
    span.id = TraceId(0x1234, slot++, 7);
    span.Enter(WaitsFor::kPeerSend, now_ns += 500);
    span.Enter(WaitsFor::kExecutor, now_ns += 4000);
    benchmark::DoNotOptimize(span);
    if (state.range(0) > 0) {
      trace.End(span, track, 7, key, 8, absl::StatusCode::kOk, now_ns += 100);
    }
  }
}
BENCHMARK(Pull)->Arg(0)->Arg(16)->Arg(1);

}  // namespace
}  // namespace tryst

BENCHMARK_MAIN();
