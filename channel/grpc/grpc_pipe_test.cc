#include "channel/grpc/grpc_pipe.h"

#include <grpcpp/alarm.h>
#include <poll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <future>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// A call that brings what the test says, and in which slices.
class ScriptedPipe final : public GrpcPipe {
 public:
  explicit ScriptedPipe(EventThread* events) : GrpcPipe(events), queue_(events->queue()) {
    EXPECT_TRUE(MakeEvent());
  }
  using GrpcPipe::Open;
  void Cancel() override {}
  void Bring(const std::vector<std::string>& slices) {
    std::vector<grpc::Slice> made;
    for (const std::string& text : slices) made.emplace_back(text);
    *into_ = grpc::ByteBuffer(made.data(), made.size());
    Happen(read_, /*ok=*/true);
  }
  void AwaitEnd() { over_.get_future().wait(); }

 private:
  void BeginRead(grpc::ByteBuffer* into, GrpcEvent* event) override {
    into_ = into;
    read_ = event;
  }
  void BeginWrite(const grpc::ByteBuffer&, GrpcEvent* event) override { Happen(event, true); }
  void BeginEnd(GrpcEvent* event) override {
    Happen(read_, /*ok=*/false);
    Happen(event, /*ok=*/true);
  }
  bool ends_call() const override { return true; }
  void Over() override { over_.set_value(); }
  // On the queue's thread. What is cancelled before its time is not ok.
  void Happen(GrpcEvent* event, bool ok) {
    grpc::Alarm& alarm = alarms_.emplace_back();
    alarm.Set(queue_, ok ? gpr_inf_past(GPR_CLOCK_REALTIME) : gpr_inf_future(GPR_CLOCK_REALTIME),
              event);
    if (!ok) alarm.Cancel();
  }

  grpc::CompletionQueue* const queue_;
  std::list<grpc::Alarm> alarms_;
  grpc::ByteBuffer* into_ = nullptr;
  GrpcEvent* read_ = nullptr;
  std::promise<void> over_;
};

ssize_t Receive(SoftPipe* pipe, std::string* text) {
  text->resize(1000);
  const iovec piece = {&(*text)[0], text->size()};
  const ssize_t got = pipe->Receive(&piece, 1);
  text->resize(got > 0 ? static_cast<size_t>(got) : 0);
  return got;
}

// It brings nothing more, and neither is it the end.
TEST(GrpcPipeTest, AnEmptySliceBehindTheBytesIsPassedOver) {
  EventThread events(std::make_unique<grpc::CompletionQueue>(), {});
  auto scripted = std::make_shared<ScriptedPipe>(&events);
  std::unique_ptr<SoftPipe> pipe = scripted->Hold();
  scripted->Open();
  std::string text;
  ASSERT_EQ(Receive(pipe.get(), &text), -1);
  const std::string bytes(1000, 'x');  // So many are no part of the slice itself.
  scripted->Bring({bytes, ""});
  pollfd woken = {pipe->event_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&woken, 1, 10'000), 1);
  EXPECT_EQ(Receive(pipe.get(), &text), 1000);
  EXPECT_EQ(text, bytes);
  EXPECT_EQ(Receive(pipe.get(), &text), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(pipe->Quiet());
  pipe.reset();
  scripted->AwaitEnd();
}

}  // namespace
}  // namespace tryst
