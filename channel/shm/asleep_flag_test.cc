#include "channel/shm/asleep_flag.h"

#include <atomic>
#include <chrono>
#include <cstdint>
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

// Two threads with one message after the other between them. The reader falls asleep before each,
// about when the writer publishes it.
class Link {
 public:
  // Until `time` is over, or a message came that nobody woke the reader for. Returns how many
  // messages came.
  uint32_t Run(std::chrono::milliseconds time) {
    const auto end = steady_clock::now() + time;
    std::thread reader([this] { Read(); });
    uint32_t sent = 0;
    uint32_t random = 12345;
    while (!lost_ && (sent % 1024 != 0 || steady_clock::now() < end)) {
      random = random * 1664525 + 1013904223;
      for (uint32_t pause = random >> 24; pause > 0; --pause) __asm__ __volatile__("");
      writer_.Publish();
      if (flag_.TakeDown()) wakes_.fetch_add(1, std::memory_order_release);
      looked_.store(++sent, std::memory_order_release);
      while (came_.load(std::memory_order_acquire) != sent && !lost_) Relax();
    }
    stop_ = true;
    reader.join();
    return sent;
  }
  bool lost() const { return lost_; }
  uint32_t slept() const { return slept_; }

 private:
  static constexpr size_t kCell = 64;
  static constexpr uint32_t kCells = 64;

  // Lets the other thread run where there are fewer processors than threads.
  void Relax() {
    if (++relaxed_ % 4096 == 0) std::this_thread::yield();
  }
  void Read() {
    uint32_t woken = 0;
    for (uint32_t came = 0; !stop_ && !lost_;) {
      flag_.Raise(shm_wire::kForMessages);
      if (!reader_.Ready()) {
        ++slept_;
        for (uint32_t turns = 1; wakes_.load(std::memory_order_acquire) == woken; ++turns) {
          if (stop_) return;
          // The writer has published the message and looked at the flag, and does nothing more.
          if (looked_.load(std::memory_order_acquire) == came + 1 &&
              wakes_.load(std::memory_order_acquire) == woken) {
            lost_ = true;
            return;
          }
          if (turns % 4096 == 0) std::this_thread::yield();
        }
      }
      if (flag_.Lower()) {
        while (wakes_.load(std::memory_order_acquire) == woken) std::this_thread::yield();
        ++woken;
      }
      if (!reader_.Ready()) continue;  // Woken for the message before.
      uint8_t copy[kCell];
      reader_.Take(copy, 8);
      came_.store(++came, std::memory_order_release);
    }
  }

  alignas(128) std::atomic<uint32_t> word_{shm_wire::kAwake};
  AsleepFlag flag_{&word_};
  alignas(128) uint8_t cells_[kCell * kCells] = {};
  alignas(128) std::atomic<uint32_t> read_{0};
  RingWriter<kCell> writer_{cells_, kCells, &read_};
  RingReader<kCell> reader_{cells_, kCells, &read_};
  alignas(128) std::atomic<uint32_t> wakes_{0};   // Packets that were sent.
  alignas(128) std::atomic<uint32_t> looked_{0};  // Messages after which the flag was looked at.
  alignas(128) std::atomic<uint32_t> came_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> lost_{false};
  uint32_t relaxed_ = 0;
  uint32_t slept_ = 0;
};

TEST(AsleepFlagTest, NoWakeUpIsLostBetweenThreads) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two processors";
  Link link;
  const uint32_t came = link.Run(std::chrono::milliseconds(1500));
  EXPECT_FALSE(link.lost()) << "the reader sleeps beside message " << came;
  EXPECT_GT(link.slept(), 0u);
}

}  // namespace
}  // namespace tryst
