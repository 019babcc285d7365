// The steady data path allocates nothing.
#include <atomic>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "tests/doubles/soft/soft_world.h"

namespace {
// The other tests of this program have threads.
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const p = malloc(bytes)) return p;
  abort();
}
void operator delete(void* p) noexcept { free(p); }
void operator delete(void* p, size_t) noexcept { free(p); }

namespace tryst {
namespace {

TEST(SoftNicAllocationTest, SteadyPathAllocatesNothing) {
  const auto nic = MustOpenSoftNic();
  SoftSide a(nic.get());
  SoftSide b(nic.get());
  a.OpenQueuePair();
  b.OpenQueuePair();
  ConnectSides(&a, &b);
  const auto play = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      a.done.clear();
      b.done.clear();
      const SendOp ops[] = {SendOp::kWrite, SendOp::kRead, SendOp::kSend,
                            SendOp::kWriteWithImmediate};
      const SendOp op = ops[i % 4];
      if (op == SendOp::kSend || op == SendOp::kWriteWithImmediate) b.PostReceives(1);
      if (!a.PostWrite(static_cast<uint64_t>(i) * 31, op).ok()) return false;
      if (!a.completions->Arm().ok()) return false;
      while (a.done.empty()) {
        a.Poll();
        b.Poll();
      }
      if (a.done[0].status != CompletionStatus::kOk) return false;
    }
    return true;
  };
  a.done.reserve(8);
  b.done.reserve(8);
  ASSERT_TRUE(play(100));
  const int64_t before = allocations;
  ASSERT_TRUE(play(2000));
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace tryst
