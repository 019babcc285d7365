#include "channel/ops/session_options.h"

namespace tryst {

FetchOpsOptions FetchOptionsFrom(const SessionOptions& options, const TransportContext& context,
                                 const std::string& peer, bool has_another) {
  FetchOpsOptions fetch;
  fetch.self = context.self;
  fetch.self_incarnation = context.incarnation;
  fetch.peer = peer;
  fetch.trace = context.trace;
  fetch.max_tensor_bytes = context.max_tensor_bytes;
  fetch.retain_ms = options.retain_ms;
  fetch.patience_ms = options.patience_ms;
  fetch.max_parked = options.max_waiting;
  fetch.max_keys = options.max_keys;
  fetch.watch = options.watch;
  if (has_another) fetch.give_up_ms = options.give_up_ms;
  return fetch;
}

ServeSessionOptions ServeOptionsFrom(const SessionOptions& options,
                                     const TransportContext& context) {
  ServeSessionOptions serve;
  serve.self = context.self;
  serve.self_incarnation = context.incarnation;
  serve.trace = context.trace;
  serve.retain_ms = options.retain_ms;
  serve.max_parked = options.max_waiting;
  serve.max_keys = options.max_keys;
  serve.watch = options.watch;
  return serve;
}

}  // namespace tryst
