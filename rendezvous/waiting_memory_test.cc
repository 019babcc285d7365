// What a receive that waits, and its key, take of memory.

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr int64_t kReceives = 200'000;

int64_t HeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

TEST(WaitingMemory, OfAReceiveAndItsKey) {
  if (HeapBytes() == 0) GTEST_SKIP() << "needs glibc's heap: a sanitizer's does not count";
  VirtualAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  std::vector<TensorKey> keys(kReceives);
  const int64_t at_first = HeapBytes();
  for (int64_t i = 0; i < kReceives; ++i) keys[i] = LocalKey(absl::StrCat("edge_", 1'000'000 + i));
  const int64_t with_keys = HeapBytes();
  for (const TensorKey& key : keys) {
    rendezvous.RecvAsync(key, Args(), [](absl::Status, const Args&, const Args&, Tensor, bool) {});
  }
  const int64_t waiting = HeapBytes();
  const int64_t of_key = (with_keys - at_first) / kReceives;
  const int64_t of_receive = (waiting - with_keys) / kReceives;
  printf("a key of %zu bytes takes %d, a receive that waits %d\n", keys[0].text().size(),
         static_cast<int>(of_key), static_cast<int>(of_receive));
  EXPECT_LE(of_receive, 150);
  EXPECT_LE(of_key, static_cast<int64_t>(keys[0].text().size()) + 136);
  EXPECT_EQ(rendezvous.counters().waiting_receives, kReceives);
}

}  // namespace
}  // namespace tryst
