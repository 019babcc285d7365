#include "channel/rdma/source_regions.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "channel/arena/arena.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// A NIC that records what is registered. Thread-safe.
class BookNic final : public Nic {
 public:
  ~BookNic() override { EXPECT_TRUE(live_.empty()); }
  std::string name() const override { return "book"; }
  const NicLimits& limits() const override { return limits_; }
  std::vector<NicPort> Ports() const override { return {}; }
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    EXPECT_EQ(access, kLocalOnly);
    ++registrations;
    if (bytes > largest) return absl::ResourceExhaustedError("RLIMIT_MEMLOCK");
    return std::unique_ptr<Region>(new Noted(this, reinterpret_cast<uint64_t>(address), bytes));
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
  absl::optional<NicEvent> NextEvent() override { return absl::nullopt; }
  int event_fd() const override { return -1; }

  size_t live() {
    MutexLock lock(&mu_);
    return live_.size();
  }
  // Whether a region covers any of it.
  bool Covers(const void* address, uint64_t bytes) {
    const uint64_t begin = reinterpret_cast<uint64_t>(address);
    MutexLock lock(&mu_);
    for (const Region* region : live_) {
      if (region->address() < begin + bytes && begin < region->address() + region->bytes()) {
        return true;
      }
    }
    return false;
  }

  std::atomic<int> registrations{0};
  uint64_t largest = UINT64_MAX;

 private:
  class Noted final : public Region {
   public:
    Noted(BookNic* nic, uint64_t address, uint64_t bytes)
        : nic_(nic), address_(address), bytes_(bytes) {
      MutexLock lock(&nic_->mu_);
      nic_->live_.push_back(this);
    }
    ~Noted() override {
      MutexLock lock(&nic_->mu_);
      for (auto& region : nic_->live_) {
        if (region == this) std::swap(region, nic_->live_.back());
      }
      nic_->live_.pop_back();
    }
    uint64_t address() const override { return address_; }
    uint64_t bytes() const override { return bytes_; }
    uint32_t local_key() const override { return 7; }
    uint32_t remote_key() const override { return 7; }

   private:
    BookNic* const nic_;
    const uint64_t address_;
    const uint64_t bytes_;
  };

  const NicLimits limits_{};
  Mutex mu_;
  std::vector<const Region*> live_ ABSL_GUARDED_BY(mu_);
};

constexpr uint64_t kMany = uint64_t{1} << 40;

Tensor Host(int64_t bytes) { return *Tensor::Allocate(DType::kUint8, {bytes}); }

uint64_t AddressOf(const Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.data()); }

TEST(SourceRegionsTest, OneRegistrationForAStorageAndItsSlices) {
  BookNic nic;
  SourceRegions sources(&nic, kMany, 100);
  const Tensor tensor = Host(1000);
  for (int i = 0; i < 10; ++i) {
    const auto whole = sources.Use(tensor);
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(whole->address(), AddressOf(tensor));
    EXPECT_EQ(whole->local_key(), 7u);
    const Tensor slice = *tensor.Slice(300, 400);
    const auto part = sources.Use(slice);
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(part->address(), AddressOf(slice));
  }
  EXPECT_EQ(nic.registrations, 1);
  EXPECT_EQ(sources.counters().found, 19u);
  EXPECT_EQ(sources.counters().kept_bytes, 1000u);
}

TEST(SourceRegionsTest, ARegionEndsBeforeItsMemoryDoes) {
  BookNic nic;
  SourceRegions sources(&nic, kMany, 100);
  std::vector<uint8_t> memory(4096);
  bool freed = false;
  for (int life = 0; life < 3; ++life) {  // Memory is freed and used again.
    freed = false;
    Tensor tensor = *Tensor::Adopt(memory.data(), DType::kUint8, {4096}, MemorySpace(), [&] {
      freed = true;
      EXPECT_FALSE(nic.Covers(memory.data(), memory.size()));
    });
    ASSERT_TRUE(sources.Use(tensor).ok());
    EXPECT_TRUE(nic.Covers(memory.data(), memory.size()));
    tensor = Tensor();
    EXPECT_TRUE(freed);
  }
  EXPECT_EQ(nic.registrations, 3);
  EXPECT_EQ(sources.counters().kept_regions, 0u);
}

TEST(SourceRegionsTest, ABlockOfTheArenaStaysRegisteredFromTensorToTensor) {
  BookNic nic;
  SourceRegions sources(&nic, kMany, 100);
  const auto arena = Arena::Make(ArenaOptions());
  const void* memory = nullptr;
  for (int i = 0; i < 10; ++i) {
    const Tensor tensor = *arena->AllocateTensor(DType::kUint8, {100'000});
    ASSERT_TRUE(sources.Use(tensor).ok());
    memory = tensor.data();
  }
  EXPECT_EQ(nic.registrations, 1);
  EXPECT_TRUE(nic.Covers(memory, 100'000));
  arena->Trim();  // The segment was used since the last Trim(),
  EXPECT_TRUE(nic.Covers(memory, 100'000));
  arena->Trim();  // but not since this one, so it goes back and is made anew.
  EXPECT_FALSE(nic.Covers(memory, 100'000));
}

TEST(SourceRegionsTest, WhatWasNotSentForLongestGoesFirst) {
  BookNic nic;
  SourceRegions sources(&nic, 2500, 100);
  const Tensor first = Host(1000), second = Host(1000), third = Host(1000);
  ASSERT_TRUE(sources.Use(first).ok());
  ASSERT_TRUE(sources.Use(second).ok());
  ASSERT_TRUE(sources.Use(third).ok());  // Each was sent from once, so the oldest is evicted.
  EXPECT_FALSE(nic.Covers(first.data(), 1000));
  ASSERT_TRUE(sources.Use(third).ok());
  ASSERT_TRUE(sources.Use(first).ok());
  EXPECT_FALSE(nic.Covers(second.data(), 1000));
  EXPECT_TRUE(nic.Covers(third.data(), 1000));
  EXPECT_EQ(sources.counters().evictions, 2u);
  EXPECT_EQ(sources.counters().kept_bytes, 2000u);
}

TEST(SourceRegionsTest, WhatIsInUseStaysAndTheRestIsForOneUse) {
  BookNic nic;
  SourceRegions sources(&nic, kMany, 1);
  const Tensor first = Host(1000), second = Host(1000);
  {
    const auto one = sources.Use(first);
    const auto other = sources.Use(second);
    ASSERT_TRUE(one.ok() && other.ok());
    EXPECT_TRUE(nic.Covers(first.data(), 1000));
    EXPECT_TRUE(nic.Covers(second.data(), 1000));
    EXPECT_EQ(sources.counters().single_use, 1u);
  }
  EXPECT_TRUE(nic.Covers(first.data(), 1000));
  EXPECT_FALSE(nic.Covers(second.data(), 1000));
}

TEST(SourceRegionsTest, OfWhatTheNicRefusesAsAWholeThePartIsTried) {
  BookNic nic;
  nic.largest = 500;
  SourceRegions sources(&nic, kMany, 100);
  const Tensor tensor = Host(1000);
  const Tensor slice = *tensor.Slice(100, 200);
  auto use = sources.Use(slice);
  ASSERT_TRUE(use.ok());
  EXPECT_EQ(use->address(), AddressOf(slice));
  EXPECT_EQ(sources.Use(tensor).status().code(), absl::StatusCode::kResourceExhausted);
  use->Reset();
  EXPECT_EQ(nic.live(), 0u);
}

TEST(SourceRegionsTest, StoragesMayOutliveIt) {
  BookNic nic;
  const Tensor tensor = Host(1000);
  for (int i = 0; i < 3; ++i) {
    SourceRegions sources(&nic, kMany, 100);
    SourceRegions another(&nic, kMany, 100);  // Stands for another NIC's.
    ASSERT_TRUE(sources.Use(tensor).ok());
    ASSERT_TRUE(another.Use(tensor).ok());
    EXPECT_EQ(nic.live(), 2u);
  }
  EXPECT_EQ(nic.live(), 0u);
}

// Storages end on other threads while this thread evicts them.
TEST(SourceRegionsTest, StoragesEndOnAnyThread) {
  BookNic nic;
  SourceRegions sources(&nic, 10'000, 100);
  constexpr int kTensors = 3000;
  std::vector<Tensor> tensors;
  for (int i = 0; i < kTensors; ++i) {
    auto* const memory = new uint8_t[1000];
    tensors.push_back(*Tensor::Adopt(memory, DType::kUint8, {1000}, MemorySpace(), [&nic, memory] {
      EXPECT_FALSE(nic.Covers(memory, 1000));
      delete[] memory;
    }));
  }
  std::atomic<int> sent{0};
  std::thread freer([&] {
    for (int i = 0; i < kTensors; ++i) {
      while (sent.load() <= i) std::this_thread::yield();
      tensors[static_cast<size_t>(i)] = Tensor();
    }
  });
  for (int i = 0; i < kTensors; ++i) {
    ASSERT_TRUE(sources.Use(tensors[static_cast<size_t>(i)]).ok());
    if (i >= 8) sent.store(i - 7);
  }
  sent.store(kTensors);
  freer.join();
  EXPECT_EQ(nic.live(), 0u);
  EXPECT_EQ(sources.counters().kept_ever, uint64_t{kTensors});
}

// An operation ends its use of a tensor by `source = SourceRegion()`; this does the same.
TEST(SourceRegionsTest, AUseThatIsOverwrittenHasEnded) {
  BookNic nic;
  SourceRegions sources(&nic, kMany, 1);
  const Tensor first = Host(1000), second = Host(1000), third = Host(1000);
  SourceRegion use = *sources.Use(first);
  EXPECT_TRUE(nic.Covers(first.data(), 1000));
  use = SourceRegion();
  use = *sources.Use(second);  // Takes the only place, since nobody uses the first.
  EXPECT_EQ(sources.counters().single_use, 0u);
  EXPECT_FALSE(nic.Covers(first.data(), 1000));
  EXPECT_TRUE(nic.Covers(second.data(), 1000));
  // By another use, while the region's place is taken: this region is for one use, and goes with
  // it.
  use = *sources.Use(third);
  EXPECT_EQ(sources.counters().single_use, 1u);
  use = *sources.Use(first);
  EXPECT_FALSE(nic.Covers(third.data(), 1000));
}

}  // namespace
}  // namespace tryst
