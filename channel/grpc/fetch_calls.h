#ifndef TRYST_CHANNEL_GRPC_FETCH_CALLS_H_
#define TRYST_CHANNEL_GRPC_FETCH_CALLS_H_

#include <grpcpp/completion_queue.h>

#include "channel/grpc/event_thread.h"

namespace tryst {

// Where the consumer's ends of FetchTensor calls run, to whatever peer: one thread, which
// also copies what arrives. Outlives every GrpcChannel that uses it. Thread-safe.
class FetchCalls {
 public:
  FetchCalls() : thread_(&queue_) {}
  grpc::CompletionQueue* queue() { return &queue_; }

 private:
  grpc::CompletionQueue queue_;
  EventThread thread_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_GRPC_FETCH_CALLS_H_
