// How much memory a waiting receive and its key take, and that what has ended is used again.

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

// How much the heap grows for each receive while receives of `keys` wait.
int64_t BytesOfReceive(Rendezvous* rendezvous, const std::vector<TensorKey>& keys) {
  const int64_t before = HeapBytes();
  for (const TensorKey& key : keys) {
    rendezvous->RecvAsync(key, RecvArgs(), [](Received&&) {});
  }
  return (HeapBytes() - before) / kReceives;
}

// The goal is 300 bytes for a receive that waits; with a key of its own it takes 384. The test
// prints what the bytes are for; docs/COSTS.md says why they stay.
TEST(WaitingMemory, OfAReceiveAndItsKey) {
  if (HeapBytes() == 0) GTEST_SKIP() << "needs glibc's heap: a sanitizer's does not count";
  VirtualAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  std::vector<TensorKey> keys(kReceives);
  const int64_t at_first = HeapBytes();
  for (int64_t i = 0; i < kReceives; ++i) keys[i] = LocalKey(absl::StrCat("edge_", 1'000'000 + i));
  const auto of_key = static_cast<int>((HeapBytes() - at_first) / kReceives);
  const auto of_text = static_cast<int>(keys[0].text().size());
  const auto of_receive = static_cast<int>(BytesOfReceive(&rendezvous, keys));
  // A second receive of the same key, which needs no entry of its own in the table.
  const auto of_second = static_cast<int>(BytesOfReceive(&rendezvous, keys));
  printf("bytes of a receive that waits, and of its key: %d\n", of_receive + of_key);
  printf("  %4d  the receive: its place in line, its key, its callback, when it began\n",
         of_second);
  printf("  %4d  the place of its key in the table\n", of_receive - of_second);
  printf("  %4d  the text of the key\n", of_text);
  printf("  %4d  the key taken apart (two hashes, two devices, incarnation, frame, iteration)\n",
         of_key - of_text);
  EXPECT_LE(of_receive, 150);
  EXPECT_LE(of_second, 136);
  EXPECT_LE(of_key, of_text + 136);
  EXPECT_EQ(rendezvous.counters().waiting_receives, 2 * kReceives);
}

// A step may last for as long as its process.
TEST(WaitingMemory, OfABatchThatHasEndedIsUsedAgain) {
  if (HeapBytes() == 0) GTEST_SKIP() << "needs glibc's heap: a sanitizer's does not count";
  VirtualAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  const TensorKey key = LocalKey("edge");
  const auto receive = [&] {
    rendezvous.RecvManyAsync({key}, RecvArgs(), [](const absl::Status&, absl::Span<Received>) {});
    return SendNumber(&rendezvous, key, 1).ok();
  };
  ASSERT_TRUE(receive());
  const int64_t before = HeapBytes();
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(receive());
  EXPECT_LT(HeapBytes() - before, 100'000);
}

}  // namespace
}  // namespace tryst
