#ifndef TRYST_CHANNEL_POOL_CHANNEL_POOL_OPTIONS_H_
#define TRYST_CHANNEL_POOL_CHANNEL_POOL_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "channel/bootstrap.h"
#include "channel/ops/session_options.h"
#include "channel/trace/trace.h"

namespace tryst {

struct ChannelPoolOptions {
  std::string self;                        // "/job:worker/replica:0/task:1"
  uint64_t incarnation = 0;                // Not 0.
  uint64_t max_tensor_bytes = UINT64_MAX;  // Larger ones are refused, on every path.
  // How often a path that was left or turned down is tried again, from least to most.
  int64_t probe_ms = 1000;
  int64_t probe_ms_most = 30'000;
  SessionOptions sessions;
  uint64_t seed = 1;
  size_t place = 0;        // TransportContext::place.
  Trace* trace = nullptr;  // Written on the poller thread; outlives the pool. May be null.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_CHANNEL_POOL_OPTIONS_H_
