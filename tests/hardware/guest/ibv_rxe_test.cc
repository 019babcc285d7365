// What only real libibverbs with a real kernel driver can show; the contract of every NIC is in
// tests/contract. Runs in the guest (run.sh), where TRYST_NIC_A and TRYST_NIC_B name the devices:
// in the set-up `one` the same device twice.
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hardware/guest/rdma_end.h"
#include "verbs/async_event_thread.h"
#include "verbs/ibv/ibv_nic.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

// The host may take the guest's processors away for a while; that must not fail a test.
constexpr std::chrono::seconds kPatience(30);

std::string Device(const char* variable) {
  const char* const name = std::getenv(variable);
  return name == nullptr ? "rxe0" : name;
}
bool OnAWire() { return Device("TRYST_NIC_A") != Device("TRYST_NIC_B"); }

class IbvRxeTest : public ::testing::Test {
 protected:
  void Open(const QueuePairOptions& options, size_t bytes = 1 << 20) {
    absl::StatusOr<RdmaEnd> a = OpenRdmaEnd(Device("TRYST_NIC_A"), bytes, options);
    ASSERT_TRUE(a.ok()) << a.status();
    absl::StatusOr<RdmaEnd> b = OpenRdmaEnd(Device("TRYST_NIC_B"), bytes, options);
    ASSERT_TRUE(b.ok()) << b.status();
    a_ = *std::move(a);
    b_ = *std::move(b);
  }
  void OpenJoined(const QueuePairOptions& options = QueuePairOptions(), size_t bytes = 1 << 20) {
    Open(options, bytes);
    const absl::Status status = Join(&a_, &b_);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Polls until `count` completions have come, or the patience is over.
  static std::vector<Completion> Wait(RdmaEnd* end, size_t count) {
    std::vector<Completion> all;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (all.size() < count && std::chrono::steady_clock::now() < until) {
      Completion out[32];
      const absl::StatusOr<size_t> got = end->completions->Poll(absl::MakeSpan(out));
      EXPECT_TRUE(got.ok()) << got.status();
      if (!got.ok()) break;
      all.insert(all.end(), out, out + *got);
      if (*got == 0) std::this_thread::yield();
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  static bool WaitDrained(RdmaEnd* end, std::vector<Completion>* flushed) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (end->pair->state() != QueuePairState::kDrained) {
      if (std::chrono::steady_clock::now() > until) return false;
      Completion out[32];
      const absl::StatusOr<size_t> got = end->completions->Poll(absl::MakeSpan(out));
      if (!got.ok()) return false;
      flushed->insert(flushed->end(), out, out + *got);
    }
    return true;
  }
  CompletionStatus StatusOf(const SendWork& work) {
    const absl::Status posted = a_.pair->PostSend(absl::MakeConstSpan(&work, 1));
    EXPECT_TRUE(posted.ok()) << posted;
    const std::vector<Completion> done = Wait(&a_, 1);
    return done.empty() ? CompletionStatus::kGeneral : done[0].status;
  }

  RdmaEnd a_;
  RdmaEnd b_;
  Entry entry_;
};

TEST_F(IbvRxeTest, ChoosesByItselfAndSaysWhy) {
  const absl::StatusOr<std::unique_ptr<Nic>> nic = OpenIbvNic(IbvNicOptions());
  ASSERT_TRUE(nic.ok()) << nic.status();
  const std::vector<NicPort> ports = (*nic)->Ports();
  ASSERT_FALSE(ports.empty());
  EXPECT_EQ(ports[0].state, PortState::kActive);
  EXPECT_EQ(ports[0].mtu_bytes, 4096u);
  EXPECT_EQ(ports[0].address, "10.0.0.1");
  EXPECT_THAT(ports[0].description, HasSubstr("10.0.0.1, RoCE v2: IPv4"));
}

TEST_F(IbvRxeTest, LimitsAreTheDrivers) {
  Open(QueuePairOptions());
  const NicLimits& limits = a_.nic->limits();
  EXPECT_GE(limits.max_inline_bytes, 256u);
  EXPECT_GE(limits.max_entries, 16u);
  EXPECT_FALSE(limits.dma_buf);
  EXPECT_EQ(a_.nic->RegisterDmaBuf(0, 0, 4096, 0, kLocalOnly).status().code(),
            absl::StatusCode::kUnimplemented);
  const auto deepest = a_.nic->CreateCompletionQueue(limits.max_completion_depth);
  EXPECT_TRUE(deepest.ok()) << deepest.status();
}

TEST_F(IbvRxeTest, SilentWritesLandInOrderBeforeTheSignaledOne) {
  OpenJoined();
  std::memset(a_.memory.get(), 0x5a, a_.bytes);
  std::vector<Entry> entries(8);
  std::vector<SendWork> works;
  for (size_t i = 0; i < entries.size(); ++i) {
    works.push_back(a_.Write(i, i << 16, 1 << 16, &entries[i]));
    works.back().signaled = i + 1 == entries.size();
  }
  ASSERT_TRUE(a_.pair->PostSend(works).ok());
  EXPECT_EQ(a_.pair->send_room(), 120u);
  const std::vector<Completion> done = Wait(&a_, 1);
  EXPECT_EQ(done[0].id, 7u);
  EXPECT_EQ(done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(a_.pair->send_room(), 128u);
  EXPECT_EQ(std::memcmp(a_.memory.get(), b_.memory.get(), 8 << 16), 0);
}

TEST_F(IbvRxeTest, TheLesserMtuServesBothEnds) {
  Open(QueuePairOptions());
  IbvNicOptions options;
  options.choice.settings.device = Device("TRYST_NIC_B");
  options.choice.settings.mtu_bytes = 1024;
  const absl::StatusOr<std::unique_ptr<Nic>> narrow = OpenIbvNic(options);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  const auto region = (*narrow)->RegisterRegion(b_.memory.get(), b_.bytes, kRemoteWrite);
  const auto queue = (*narrow)->CreateCompletionQueue(256);
  QueuePairOptions pair_options;
  pair_options.completions = queue->get();
  auto pair = (*narrow)->CreateQueuePair(pair_options);
  ASSERT_TRUE(pair.ok()) << pair.status();
  ASSERT_TRUE(a_.pair->Connect((*pair)->LocalAddress()).ok());
  ASSERT_TRUE((*pair)->Connect(a_.pair->LocalAddress()).ok());
  a_.remote_address = (*region)->address();
  a_.remote_key = (*region)->remote_key();
  std::memset(a_.memory.get(), 7, a_.bytes);
  EXPECT_EQ(StatusOf(a_.Write(1, 0, a_.bytes, &entry_)), CompletionStatus::kOk);
  EXPECT_EQ(b_.memory.get()[b_.bytes - 1], 7);
}

TEST_F(IbvRxeTest, SilentWritesThatSucceededDoNotHoldTheDrainUp) {
  OpenJoined();
  SendWork silent = a_.Write(1, 0, 4096, &entry_);
  silent.signaled = false;
  const SendWork last = [&] {
    SendWork work = silent;
    work.signaled = true;
    return work;
  }();
  ASSERT_TRUE(a_.pair->PostSend({last}).ok());
  Wait(&a_, 1);
  ASSERT_TRUE(a_.pair->PostSend({silent, silent, silent}).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  a_.pair->Break();
  std::vector<Completion> flushed;
  EXPECT_TRUE(WaitDrained(&a_, &flushed)) << QueuePairStateName(a_.pair->state());
}

TEST_F(IbvRxeTest, ABreakBringsEveryWorkBackOnce) {
  OpenJoined();
  std::set<uint64_t> expected;
  for (uint64_t id = 0; id < 64; ++id) {
    const SendWork work = a_.Write(id, 0, a_.bytes, &entry_);
    ASSERT_TRUE(a_.pair->PostSend(absl::MakeConstSpan(&work, 1)).ok());
    ReceiveWork receive;
    receive.id = 1000 + id;
    ASSERT_TRUE(a_.pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
    expected.insert(id);
    expected.insert(1000 + id);
  }
  a_.pair->Break();
  std::vector<Completion> flushed;
  EXPECT_TRUE(WaitDrained(&a_, &flushed)) << QueuePairStateName(a_.pair->state());
  EXPECT_EQ(flushed.size(), expected.size());
  for (const Completion& each : flushed) EXPECT_EQ(expected.erase(each.id), 1u) << each.id;
  EXPECT_TRUE(expected.empty());
}

TEST_F(IbvRxeTest, ABreakBeforeConnectDrainsToo) {
  Open(QueuePairOptions());
  ReceiveWork receive;
  receive.id = 5;
  ASSERT_TRUE(a_.pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  a_.pair->Break();
  std::vector<Completion> flushed;
  EXPECT_TRUE(WaitDrained(&a_, &flushed)) << QueuePairStateName(a_.pair->state());
  ASSERT_EQ(flushed.size(), 1u);
  EXPECT_EQ(flushed[0].status, CompletionStatus::kFlushed);
}

TEST_F(IbvRxeTest, ADestroyedPairLeavesItsQueueClean) {
  OpenJoined();
  QueuePairOptions options;
  options.completions = a_.completions.get();
  options.send_depth = options.receive_depth = 128;
  for (int round = 0; round < 20; ++round) {
    std::vector<Entry> entries(16);
    std::vector<SendWork> works;
    for (Entry& entry : entries) works.push_back(a_.Write(round, 0, 1 << 16, &entry));
    ASSERT_TRUE(a_.pair->PostSend(works).ok());
    a_.pair.reset();  // Some works are done, some under way, some not begun.
    auto pair = a_.nic->CreateQueuePair(options);
    ASSERT_TRUE(pair.ok()) << pair.status();
    a_.pair = *std::move(pair);
    QueuePairOptions peer_options = options;
    peer_options.completions = b_.completions.get();
    b_.pair.reset();
    auto peer = b_.nic->CreateQueuePair(peer_options);
    ASSERT_TRUE(peer.ok()) << peer.status();
    b_.pair = *std::move(peer);
    ASSERT_TRUE(Join(&a_, &b_).ok());
    const std::vector<Completion> done = [&] {
      const SendWork work = a_.Write(777, 0, 8, &entry_);
      EXPECT_TRUE(a_.pair->PostSend(absl::MakeConstSpan(&work, 1)).ok());
      return Wait(&a_, 1);
    }();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].id, 777u);
    EXPECT_EQ(done[0].status, CompletionStatus::kOk);
  }
}

TEST_F(IbvRxeTest, APeerThatIsGoneIsNoticedInTime) {
  QueuePairOptions options;
  options.ack_timeout = 12;  // 17 ms.
  options.retry_count = 3;
  OpenJoined(options);
  b_.pair.reset();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(StatusOf(a_.Write(1, 0, 64, &entry_)), CompletionStatus::kRetryExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(a_.pair->PostSend({}).code(), absl::StatusCode::kFailedPrecondition);
  std::vector<Completion> flushed;
  EXPECT_TRUE(WaitDrained(&a_, &flushed));
}

TEST_F(IbvRxeTest, AnArmedQueueWakesASleeper) {
  OpenJoined();
  ASSERT_TRUE(b_.completions->Arm().ok());
  pollfd entry = {b_.completions->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  ReceiveWork receive;
  ASSERT_TRUE(b_.pair->PostReceive(absl::MakeConstSpan(&receive, 1)).ok());
  SendWork work = a_.Write(1, 0, 64, &entry_);
  work.op = SendOp::kWriteWithImmediate;
  work.immediate = 0x01020304;
  EXPECT_EQ(StatusOf(work), CompletionStatus::kOk);
  EXPECT_EQ(poll(&entry, 1, 20000), 1);
  const std::vector<Completion> done = Wait(&b_, 1);
  EXPECT_EQ(done[0].op, CompletionOp::kReceiveWriteImmediate);
  EXPECT_EQ(done[0].immediate, 0x01020304u);
  EXPECT_EQ(done[0].bytes, 64u);
  ASSERT_TRUE(b_.completions->Arm().ok());
  EXPECT_EQ(poll(&entry, 1, 0), 0);  // The event was consumed.
}

class Gatherer {
 public:
  void Add(const NicEvent& event) {
    MutexLock lock(&mu_);
    kinds_.insert(event.kind);
    changed_.NotifyAll();
  }
  bool Await(NicEvent::Kind kind) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(&mu_);
    while (kinds_.count(kind) == 0) {
      if (changed_.WaitUntil(&mu_, until)) return kinds_.count(kind) != 0;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::set<NicEvent::Kind> kinds_ ABSL_GUARDED_BY(mu_);
};

TEST_F(IbvRxeTest, ThePortGoesDownAndUpAndTheAddressWithIt) {
  if (!OnAWire()) GTEST_SKIP() << "takes a wire to pull";
  Open(QueuePairOptions());
  Gatherer gatherer;
  const auto thread =
      AsyncEventThread::Start(a_.nic.get(), [&](const NicEvent& event) { gatherer.Add(event); });
  ASSERT_TRUE(thread.ok()) << thread.status();
  ASSERT_EQ(std::system("ip link set v0 down"), 0);
  EXPECT_TRUE(gatherer.Await(NicEvent::Kind::kPortDown));
  EXPECT_EQ(a_.nic->Ports()[0].state, PortState::kDown);
  EXPECT_THAT(a_.nic->Ports()[0].description, HasSubstr("port is down"));
  QueuePairOptions options;
  options.completions = a_.completions.get();
  a_.pair.reset();
  EXPECT_EQ(a_.nic->CreateQueuePair(options).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(std::system("bash /run/job/guest-wire"), 0);
  EXPECT_TRUE(gatherer.Await(NicEvent::Kind::kPortUp));
  ASSERT_EQ(std::system("ip addr add 10.0.7.7/24 dev v0 && ip addr del 10.0.7.7/24 dev v0"), 0);
  EXPECT_TRUE(gatherer.Await(NicEvent::Kind::kAddressChanged));
  EXPECT_TRUE(a_.nic->CreateQueuePair(options).ok());
}

}  // namespace
}  // namespace tryst
