#ifndef TRYST_SERVER_SERVICES_UNARY_CALLS_H_
#define TRYST_SERVER_SERVICES_UNARY_CALLS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "channel/grpc/event_thread.h"

namespace tryst {

// Serves the unary calls of a gRPC service on a completion queue that an EventThread turns. gRPC's
// callback interface would start threads of its own, and those would take events from the
// EventThread.
class UnaryCalls {
 public:
  class Call;
  using Writer = grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>;
  // Asks gRPC for the next call of one method.
  using Next = std::function<void(grpc::ServerContext* context, grpc::ByteBuffer* request,
                                  Writer* writer, void* tag)>;
  // Runs on the queue's thread and must return soon. It answers the call now or later.
  using Handle = std::function<void(Call* call)>;

  ~UnaryCalls();  // REQUIRES: no call is left.
  // Serves a method. REQUIRES: the gRPC server has started.
  void Serve(Next next, Handle handle);
  // Waits for the last call. REQUIRES: the gRPC server has shut down.
  void Join();

 private:
  struct Method {
    UnaryCalls* calls;
    Next next;
    Handle handle;
  };
  static void Await(std::shared_ptr<const Method> method);

  Mutex mu_;
  CondVar none_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;  // Includes those that gRPC has not handed us yet.
};

// A call that has arrived. Owns itself until gRPC is done with it.
class UnaryCalls::Call final : public GrpcEvent {
 public:
  const grpc::ServerContext& context() const { return context_; }
  const std::string& request() const { return request_; }  // The raw bytes.
  // Call it once, on any thread. The call deletes itself when both this and gRPC are done.
  void Answer(const grpc::Status& status, const std::string& bytes);

 private:
  friend class UnaryCalls;
  explicit Call(std::shared_ptr<const Method> method) : method_(std::move(method)) {}
  ~Call() override;
  void OnEvent(bool ok) override;

  const std::shared_ptr<const Method> method_;
  grpc::ServerContext context_;
  Writer writer_{&context_};
  grpc::ByteBuffer buffer_;
  std::string request_;
  bool has_come_ = false;
};

}  // namespace tryst

#endif  // TRYST_SERVER_SERVICES_UNARY_CALLS_H_
