#ifndef TRYST_CHANNEL_TRACE_PATH_VIEW_H_
#define TRYST_CHANNEL_TRACE_PATH_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "channel/trace/trace_span.h"

namespace tryst {

// How a path is, for programs to compare. `PathView::state` says it in words, which may change.
enum class PathHealth : uint8_t {
  kIdle,     // It has no connection and needs none: not tried, spare, turned down by the peer.
  kOpening,  // Its connection is being made, and no attempt has failed.
  kWorking,  // It is connected, or needs no connection.
  kFailing,  // Its connection was lost or cannot be made.
};
// "idle", "opening", "working", "failing".
absl::string_view PathHealthName(PathHealth health);

// The present state of one path between us and a peer.
struct PathView {
  TraceRole role = TraceRole::kFetch;
  std::string peer;
  std::string path;     // "rdma/soft", "grpc".
  bool in_use = false;  // Whether fetches take this path.
  PathHealth health = PathHealth::kIdle;
  std::string state;      // "connected", "turned down", "not tried".
  std::string why;        // Why it was turned down, or has no connection; may be empty.
  int64_t since_ns = 0;   // Since when `state` holds, by the poller's clock; 0: unknown.
  uint64_t epoch = 0;     // Connections made so far.
  size_t under_way = 0;   // Operations that have not ended.
  std::string note = {};  // What to know about it although it works; may be empty.
  size_t place = 0;       // The number of our poller that it is on.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_PATH_VIEW_H_
