#include "channel/shm/fifo.h"

#include <deque>
#include <random>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(FifoTest, IsADequeWhateverIsDoneToIt) {
  std::mt19937_64 random(1);
  Fifo<int> fifo;
  std::deque<int> deque;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t what = random() % 100;
    if (what < 50) {
      fifo.push_back(i);
      deque.push_back(i);
    } else if (what < 95) {
      if (deque.empty()) continue;
      fifo.pop_front();
      deque.pop_front();
    } else if (what < 99) {
      if (deque.empty()) continue;
      const size_t at = random() % deque.size();
      fifo.Remove(deque[at]);
      deque.erase(deque.begin() + static_cast<ptrdiff_t>(at));
      fifo.Remove(-1);  // Not in it.
    } else if (random() % 50 == 0) {
      fifo.clear();
      deque.clear();
    }
    ASSERT_EQ(fifo.size(), deque.size());
    ASSERT_EQ(fifo.empty(), deque.empty());
    if (i % 64 != 0) continue;
    for (size_t at = 0; at < deque.size(); ++at) ASSERT_EQ(fifo[at], deque[at]);
  }
}

}  // namespace
}  // namespace tryst
