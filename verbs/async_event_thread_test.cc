#include "verbs/async_event_thread.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include "base/mutex.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// A NIC with nothing but events.
class EventNic final : public Nic {
 public:
  EventNic() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    read_end_ = ends[0];
    write_end_ = ends[1];
  }
  ~EventNic() override {
    close(read_end_);
    if (write_end_ >= 0) close(write_end_);
  }

  void Raise(uint32_t id) {
    MutexLock lock(&mu_);
    NicEvent event;
    event.kind = NicEvent::Kind::kQueuePairFatal;
    event.id = id;
    events_.push_back(event);
    EXPECT_EQ(write(write_end_, "x", 1), 1);
  }
  void HangUp() {
    close(write_end_);
    write_end_ = -1;
  }
  void HideDescriptor() { hidden_ = true; }

  absl::optional<NicEvent> NextEvent() override {
    MutexLock lock(&mu_);
    ++asked_;
    if (events_.empty()) return absl::nullopt;
    char byte;
    EXPECT_EQ(read(read_end_, &byte, 1), 1);
    const NicEvent event = events_.front();
    events_.pop_front();
    return event;
  }
  int asked() {
    MutexLock lock(&mu_);
    return asked_;
  }
  int event_fd() const override { return hidden_ ? -1 : read_end_; }

  std::string name() const override { return "events"; }
  const NicLimits& limits() const override { return limits_; }
  std::vector<NicPort> Ports() const override { return {}; }
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void*, uint64_t, uint32_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int, uint64_t, uint64_t, uint64_t,
                                                         uint32_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions&) override {
    return absl::UnimplementedError("");
  }

 private:
  NicLimits limits_;
  bool hidden_ = false;
  int read_end_ = -1;
  int write_end_ = -1;
  Mutex mu_;
  std::deque<NicEvent> events_ ABSL_GUARDED_BY(mu_);
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
};

// Collects ids until there are enough.
class Gatherer {
 public:
  void Add(const NicEvent& event) {
    MutexLock lock(&mu_);
    ids_.push_back(event.id);
    changed_.NotifyAll();
  }
  std::vector<uint32_t> WaitFor(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(&mu_);
    while (ids_.size() < count && !changed_.WaitUntil(&mu_, until)) {
    }
    return ids_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<uint32_t> ids_ ABSL_GUARDED_BY(mu_);
};

TEST(AsyncEventThreadTest, HandsEventsOnInOrder) {
  EventNic nic;
  Gatherer gatherer;
  nic.Raise(1);  // Raised before the thread starts.
  auto thread = AsyncEventThread::Start(&nic, [&](const NicEvent& event) { gatherer.Add(event); });
  ASSERT_TRUE(thread.ok()) << thread.status();
  nic.Raise(2);
  nic.Raise(3);
  EXPECT_EQ(gatherer.WaitFor(3), (std::vector<uint32_t>{1, 2, 3}));
  nic.Raise(4);  // The thread has gone to sleep meanwhile.
  EXPECT_EQ(gatherer.WaitFor(4), (std::vector<uint32_t>{1, 2, 3, 4}));
}

TEST(AsyncEventThreadTest, AfterTheDestructorNobodyIsCalled) {
  EventNic nic;
  Gatherer gatherer;
  {
    auto thread =
        AsyncEventThread::Start(&nic, [&](const NicEvent& event) { gatherer.Add(event); });
    ASSERT_TRUE(thread.ok());
  }
  nic.Raise(1);
  EXPECT_TRUE(gatherer.WaitFor(0).empty());
}

TEST(AsyncEventThreadTest, ADeadDescriptorDoesNotSpin) {
  EventNic nic;
  Gatherer gatherer;
  auto thread = AsyncEventThread::Start(&nic, [&](const NicEvent& event) { gatherer.Add(event); });
  ASSERT_TRUE(thread.ok());
  nic.HangUp();
  // A spinning thread could ask many thousand times in this time.
  usleep(100 * 1000);
  EXPECT_LE(nic.asked(), 3);
}

// No thread can be started, as where the limit of processes is reached.
TEST(AsyncEventThreadTest, WithoutAThreadItSaysSo) {
  EventNic nic;
  pthread_attr_t usual;
  pthread_attr_t impossible;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&impossible), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&impossible, size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&impossible), 0);
  EXPECT_EQ(AsyncEventThread::Start(&nic, [](const NicEvent&) {}).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_TRUE(AsyncEventThread::Start(&nic, [](const NicEvent&) {}).ok());
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&impossible);
}

TEST(AsyncEventThreadTest, ANicOnVirtualTimeIsRefused) {
  EventNic nic;
  nic.HideDescriptor();
  EXPECT_EQ(AsyncEventThread::Start(&nic, [](const NicEvent&) {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tryst
