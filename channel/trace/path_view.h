#ifndef TRYST_CHANNEL_TRACE_PATH_VIEW_H_
#define TRYST_CHANNEL_TRACE_PATH_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "channel/trace/trace_span.h"

namespace tryst {

// One way between us and a peer, as it stands.
struct PathView {
  TraceRole role = TraceRole::kFetch;
  std::string peer;
  std::string path;       // "rdma/soft", "grpc".
  bool in_use = false;    // Of the ways to one peer, the one that is taken.
  std::string state;      // "connected", "turned down", "not tried".
  std::string why;        // Why it was turned down, or has no connection. Empty: nothing to say.
  int64_t since_ns = 0;   // Of `state`, by the poller's clock; 0: not known.
  uint64_t epoch = 0;     // Connections made so far.
  size_t under_way = 0;   // Operations that have not ended.
  std::string note = {};  // What to know of it, although it works. Empty: nothing.
  size_t place = 0;       // Which of our pollers it is on.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_PATH_VIEW_H_
