#include "channel/shm/asleep_flag.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "channel/shm/ring.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using std::chrono::steady_clock;

TEST(AsleepFlagTest, OneOfThoseThatSeeItWakes) {
  std::atomic<uint32_t> word{shm_wire::kAwake};
  AsleepFlag flag(&word);
  EXPECT_FALSE(flag.TakeDown()) << "it does not sleep";
  flag.Raise(shm_wire::kForMessages);
  EXPECT_FALSE(flag.Lower()) << "nobody has seen it";
  flag.Raise(shm_wire::kForRoomToo);
  EXPECT_EQ(word, shm_wire::kForRoomToo);
  EXPECT_TRUE(flag.TakeDown());
  EXPECT_FALSE(flag.TakeDown());
  EXPECT_TRUE(flag.Lower()) << "a packet is on its way";
}

// The processors that this process may use.
std::vector<int> Processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return processors;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) processors.push_back(cpu);
  }
  return processors;
}

void StayOn(int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  sched_setaffinity(0, sizeof(mask), &mask);  // 0 is this thread.
}

// A thread that sends one message after the other, and one that falls asleep before each. In every
// round both begin together, so that each acts while what the other has stored is still on its way.
// Each stays on a processor of its own: on one they would take turns, and race for nothing.
class Race {
 public:
  // Until `time` is over, or neither saw the other. Returns the rounds.
  uint32_t Run(std::chrono::milliseconds time, int writers_cpu, int readers_cpu) {
    const auto end = steady_clock::now() + time;
    std::thread reader([this, readers_cpu] {
      StayOn(readers_cpu);
      Read();
    });
    StayOn(writers_cpu);
    uint32_t random = 12345;
    uint32_t rounds = 0;
    while (!over_) {
      seen_ = word_.load(std::memory_order_relaxed);  // Its old value is in this one's cache.
      Meet();
      Pause(&random);
      writer_.Publish();
      const bool saw = flag_.TakeDown();
      Meet();
      ++rounds;
      lost_ = !saw && !found_;
      woken_ += saw;
      over_ = lost_ || (rounds % 1024 == 0 && steady_clock::now() > end);
      Meet();
    }
    reader.join();
    return rounds;
  }
  bool lost() const { return lost_; }
  uint32_t woken() const { return woken_; }

 private:
  static constexpr size_t kCell = 64;
  static constexpr uint32_t kCells = 64;

  void Read() {
    uint32_t random = 54321;
    while (!over_) {
      found_ = reader_.Ready();  // The old value of the cell is in this one's cache.
      Meet();
      Pause(&random);
      flag_.Raise(shm_wire::kForMessages);
      found_ = reader_.Ready();
      Meet();
      flag_.Lower();
      uint8_t copy[kCell];
      reader_.Take(copy, 8);
      Meet();
    }
  }
  static void Pause(uint32_t* random) {
    *random = *random * 1664525 + 1013904223;
    for (uint32_t turns = *random >> 27; turns > 0; --turns) __asm__ __volatile__("");
  }
  // Until both threads are here.
  void Meet() {
    const uint32_t both = (met_.fetch_add(1) | 1) + 1;
    while (static_cast<int32_t>(met_.load() - both) < 0) {
    }
  }

  alignas(128) std::atomic<uint32_t> met_{0};
  alignas(128) std::atomic<uint32_t> word_{shm_wire::kAwake};
  AsleepFlag flag_{&word_};
  alignas(128) uint8_t cells_[kCell * kCells] = {};
  alignas(128) std::atomic<uint32_t> read_{0};
  RingWriter<kCell> writer_{cells_, kCells, &read_};
  RingReader<kCell> reader_{cells_, kCells, &read_};
  alignas(128) bool found_ = false;
  std::atomic<bool> over_{false};
  uint32_t seen_ = 0;
  bool lost_ = false;
  uint32_t woken_ = 0;
};

TEST(AsleepFlagTest, NoWakeUpIsLostBetweenThreads) {
  const std::vector<int> cpus = Processors();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two processors";
  Race race;
  uint32_t rounds = 0;
  std::thread([&] { rounds = race.Run(std::chrono::milliseconds(2000), cpus[0], cpus[1]); }).join();
  EXPECT_FALSE(race.lost()) << "in round " << rounds << " the reader sleeps beside a message";
  EXPECT_GT(race.woken(), 0u);
  printf("%u rounds, in %u of them the writer saw the flag\n", rounds, race.woken());
}

}  // namespace
}  // namespace tryst
