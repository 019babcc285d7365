#ifndef TRYST_CHANNEL_OPS_SESSION_OPTIONS_H_
#define TRYST_CHANNEL_OPS_SESSION_OPTIONS_H_

#include <cstdint>
#include <string>

#include "channel/ops/fetch_ops.h"
#include "channel/ops/limits.h"
#include "channel/ops/serve_session.h"
#include "channel/ops/slot_watch.h"
#include "channel/transport.h"

namespace tryst {

// What holds for sessions, over every kind of link.
struct SessionOptions {
  uint32_t max_consumers = 4096;  // How many consumers may be connected to us.
  int64_t retain_ms = 60'000;     // How long a producer waits for a consumer without a link.
  int64_t patience_ms = 60'000;   // How long a fetch goes on while its peer is silent.
  // Fetches from one peer that may wait for a Send, without a slot.
  uint32_t max_waiting = 1'000'000;
  // How long a path may fail, while its peer is up and fetches wait, before they move to the next
  // path.
  int64_t give_up_ms = 2000;
  // How many keys have a number at a time, at either end of a session. For tests, which see few.
  uint32_t max_keys = limits::kMaxKeys;
  SlotWatch* watch = nullptr;  // For tests: hears what happens on the slots.
};

// `has_another`: there is another kind of link to go on by.
FetchOpsOptions FetchOptionsFrom(const SessionOptions& options, const TransportContext& context,
                                 const std::string& peer, bool has_another);
ServeSessionOptions ServeOptionsFrom(const SessionOptions& options,
                                     const TransportContext& context);

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SESSION_OPTIONS_H_
