// Two pollers that sleep and wake each other through shared memory. Who falls asleep raises a flag
// and then looks for messages; who sends a message then looks at the flag. If either could look too
// early, both would wait.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/shm/shm_process.h"

namespace tryst {
namespace {

using std::chrono::steady_clock;

constexpr int64_t kAwakeUs = 1'000'000;  // Never asleep while the other has something to do.
constexpr std::chrono::seconds kPatience{10};

// Fetches one tensor after the other, each at another moment of the other end's falling asleep.
struct Chain {
  void Next() {
    random = random * 1664525 + 1013904223;
    for (uint32_t pause = random >> 21; pause > 0; --pause) __asm__ __volatile__("");
    channel->Fetch(1, key, Args(),
                   [this](absl::Status status, const Args&, const Args&, const Tensor&, bool) {
                     failed += !status.ok();
                     const int64_t now = done.fetch_add(1, std::memory_order_relaxed) + 1;
                     if (now < most.load(std::memory_order_relaxed)) return Next();
                   });
  }
  ShmFetchChannel* channel = nullptr;
  TensorKey key;
  uint32_t random = 12345;
  int failed = 0;
  std::atomic<int64_t> most{0};
  std::atomic<int64_t> done{0};
};

// Until `seconds` are over. Returns how many came, and fails if one did not.
int64_t FetchFor(std::chrono::milliseconds time, int64_t producer_spin_us,
                 int64_t consumer_spin_us) {
  ShmProcess::Options options;
  options.worker = absl::StrCat("/job:p", producer_spin_us, "/replica:0/task:0");
  options.spin_us = producer_spin_us;
  ShmProcess producer(options);
  options.worker = absl::StrCat("/job:c", producer_spin_us, "/replica:0/task:0");
  options.incarnation = 2;
  options.spin_us = consumer_spin_us;
  ShmProcess consumer(options);
  Chain chain;
  chain.key = ShmProcess::Key(producer.worker(), consumer.worker(), "edge");
  const Tensor tensor = *Tensor::Allocate(DType::kInt64, {});
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end) {
    constexpr int64_t kAtOnce = 2000;
    for (int64_t i = 0; i < kAtOnce; ++i) {
      EXPECT_TRUE(producer.step()->Send(chain.key, Args(), tensor, false).ok());
    }
    chain.most += kAtOnce;
    consumer.poller()->RunAndWait([&] {
      chain.channel = consumer.Channel(producer.worker());
      chain.Next();
    });
    int64_t seen = -1;
    auto since = steady_clock::now();
    while (chain.done < chain.most) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (seen != chain.done) since = steady_clock::now();
      seen = chain.done;
      if (steady_clock::now() - since < kPatience) continue;
      ADD_FAILURE() << "after " << seen << " fetches both ends sleep";
      return seen;
    }
  }
  EXPECT_EQ(chain.failed, 0);
  return chain.done;
}

TEST(AsleepTest, AProducerThatFallsAsleepHearsWhatIsAsked) {
  const int64_t fetched = FetchFor(std::chrono::milliseconds(2500), 0, kAwakeUs);
  printf("%ld fetches\n", static_cast<long>(fetched));
}

TEST(AsleepTest, AConsumerThatFallsAsleepHearsWhatIsAnswered) {
  const int64_t fetched = FetchFor(std::chrono::milliseconds(2500), kAwakeUs, 0);
  printf("%ld fetches\n", static_cast<long>(fetched));
}

}  // namespace
}  // namespace tryst
