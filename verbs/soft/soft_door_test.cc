#include "verbs/soft/soft_door.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// A full pipe, which nobody says anything on. Room comes when its user does something else.
class FullPipe final : public SoftPipe {
 public:
  explicit FullPipe(size_t* sent) : sent_(sent) { NoSignal(); }
  void MakeRoom() {
    if (!wants_room_) return;
    wants_room_ = false;
    has_room_ = true;
    eventfd_write(event_.get(), 1);
  }
  ssize_t Send(const iovec* pieces, int count) override {
    wants_room_ = !has_room_;
    errno = EAGAIN;
    if (!has_room_) return -1;
    for (int i = 0; i < count; ++i) *sent_ += pieces[i].iov_len;
    return static_cast<ssize_t>(*sent_);
  }
  ssize_t SendOf(const iovec* pieces, const void* const*, int count, KeepOwner) override {
    return Send(pieces, count);
  }
  ssize_t Receive(const iovec*, int) override {
    MakeRoom();
    NoSignal();
    errno = EAGAIN;
    return -1;
  }
  void EndSending() override {}
  size_t unsent() const override { return 0; }
  bool Quiet() override { return true; }
  int event_fd() const override { return event_.get(); }

 private:
  void NoSignal() {
    eventfd_t ignored;
    eventfd_read(event_.get(), &ignored);
  }
  size_t* const sent_;
  bool has_room_ = false;
  bool wants_room_ = false;
  const Fd event_{eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)};
};

TEST(SoftDoorTest, WhoLeavesHearsOfRoomForItsLastWords) {
  SoftContext context{SoftNicOptions()};
  SoftEpoll epoll;
  ASSERT_TRUE(epoll.Open());
  const SoftDoor::QueuePairs none;
  SoftDoor door(&context, &epoll, &none);
  const std::vector<uint8_t> last(100);
  size_t sent = 0;
  auto pipe = std::make_unique<FullPipe>(&sent);
  FullPipe* const other_end = pipe.get();
  door.CloseGently(SoftStream(std::move(pipe)), last);
  other_end->MakeRoom();
  epoll_event event;
  while (sent < last.size() && epoll_wait(epoll.fd(), &event, 1, 0) > 0) door.SeeOff();
  EXPECT_EQ(sent, last.size());
}

}  // namespace
}  // namespace tryst
