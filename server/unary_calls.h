#ifndef TRYST_SERVER_UNARY_CALLS_H_
#define TRYST_SERVER_UNARY_CALLS_H_

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

// Unary calls that a gRPC service gets by a completion queue which an EventThread turns. gRPC's
// callbacks would bring threads of gRPC's own, and those take events from that thread's hands.
class UnaryCalls {
 public:
  class Call;
  using Writer = grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>;
  // Asks gRPC for the next call of one method.
  using Next = std::function<void(grpc::ServerContext* context, grpc::ByteBuffer* request,
                                  Writer* writer, void* tag)>;
  // On the queue's thread, which it must not keep. Answers the call now or later.
  using Handle = std::function<void(Call* call)>;

  ~UnaryCalls();  // REQUIRES: none is left.
  // Serves a method from when the gRPC server has started.
  void Serve(Next next, Handle handle);
  // Waits for the last of them. REQUIRES: the gRPC server has shut down.
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
  int calls_ ABSL_GUARDED_BY(mu_) = 0;  // With those that have not come yet.
};

// One that has come. Owns itself until gRPC is done with it.
class UnaryCalls::Call final : public GrpcEvent {
 public:
  const grpc::ServerContext& context() const { return context_; }
  const std::string& request() const { return request_; }  // As it came.
  // Any thread, once; the last that is done with the call.
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

#endif  // TRYST_SERVER_UNARY_CALLS_H_
