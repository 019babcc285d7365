#include "verbs/registration_cache.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// Counts what is registered. Thread-safe, as every Nic is.
class CountingNic final : public Nic {
 public:
  ~CountingNic() override { EXPECT_EQ(regions.load(), 0); }
  std::string name() const override { return "counting"; }
  const NicLimits& limits() const override { return limits_; }
  std::vector<NicPort> Ports() const override { return {}; }
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t) override {
    ++registrations;
    if (on_register) on_register();
    if (regions.load() >= max_regions) return absl::ResourceExhaustedError("RLIMIT_MEMLOCK");
    return std::unique_ptr<Region>(
        new Counted(this, reinterpret_cast<uint64_t>(address), bytes, ++next_key_));
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

  std::atomic<int> regions{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int> registrations{0};
  int max_regions = 1 << 30;
  std::function<void()> on_register;
  std::function<void()> on_deregister;

 private:
  class Counted final : public Region {
   public:
    Counted(CountingNic* nic, uint64_t address, uint64_t bytes, uint32_t key)
        : nic_(nic), address_(address), bytes_(bytes), key_(key) {
      ++nic->regions;
      nic->bytes += static_cast<int64_t>(bytes);
    }
    ~Counted() override {
      if (nic_->on_deregister) nic_->on_deregister();
      --nic_->regions;
      nic_->bytes -= static_cast<int64_t>(bytes_);
    }
    uint64_t address() const override { return address_; }
    uint64_t bytes() const override { return bytes_; }
    uint32_t local_key() const override { return key_; }
    uint32_t remote_key() const override { return key_; }

   private:
    CountingNic* const nic_;
    const uint64_t address_;
    const uint64_t bytes_;
    const uint32_t key_;
  };

  const NicLimits limits_{};
  std::atomic<uint32_t> next_key_{0};
};

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

TEST(RegistrationCacheTest, HitsWhatContainsTheRangeWithTheSameRights) {
  CountingNic nic;
  RegistrationCache cache(&nic, RegistrationCacheOptions());
  auto wide = cache.Take(At(1000), 1000, kLocalWrite);
  ASSERT_TRUE(wide.ok() && *wide);
  auto inner = cache.Take(At(1500), 500, kLocalWrite);
  ASSERT_TRUE(inner.ok() && *inner);
  EXPECT_EQ(inner->region(), wide->region());
  auto beyond = cache.Take(At(1500), 501, kLocalWrite);
  ASSERT_TRUE(beyond.ok() && *beyond);
  EXPECT_NE(beyond->region(), wide->region());
  auto before = cache.Take(At(999), 2, kLocalWrite);
  ASSERT_TRUE(before.ok() && *before);
  EXPECT_NE(before->region(), wide->region());
  auto stronger = cache.Take(At(1000), 1000, kRemoteWrite);
  ASSERT_TRUE(stronger.ok() && *stronger);
  EXPECT_NE(stronger->region(), wide->region());
  const RegistrationCacheCounters counters = cache.counters();
  EXPECT_EQ(counters.hits, 1u);
  EXPECT_EQ(counters.misses, 4u);
  EXPECT_EQ(counters.bytes, 1000u + 501 + 2 + 1000);
  EXPECT_EQ(counters.regions_in_use, 4u);
}

TEST(RegistrationCacheTest, EvictsTheLongestUnusedAndNeverWhatIsInUse) {
  CountingNic nic;
  RegistrationCacheOptions options;
  options.max_regions = 3;
  RegistrationCache cache(&nic, options);
  auto kept = cache.Take(At(100), 10, 0);
  ASSERT_TRUE(kept.ok());
  ASSERT_TRUE(cache.Take(At(200), 10, 0).ok());
  ASSERT_TRUE(cache.Take(At(300), 10, 0).ok());
  ASSERT_TRUE(cache.Take(At(200), 10, 0).ok());  // It is used again, so 300 is older now.
  ASSERT_TRUE(cache.Take(At(400), 10, 0).ok());
  EXPECT_EQ(nic.registrations.load(), 4);
  ASSERT_TRUE(cache.Take(At(200), 10, 0).ok());
  ASSERT_TRUE(cache.Take(At(100), 10, 0).ok());
  EXPECT_EQ(nic.registrations.load(), 4);
  ASSERT_TRUE(cache.Take(At(300), 10, 0).ok());
  EXPECT_EQ(nic.registrations.load(), 5);
  EXPECT_EQ(nic.regions.load(), 3);
}

TEST(RegistrationCacheTest, NoRoomIsNotAnErrorAndEvictsNothing) {
  CountingNic nic;
  RegistrationCacheOptions options;
  options.max_bytes = 100;
  RegistrationCache cache(&nic, options);
  auto busy = cache.Take(At(1000), 60, 0);
  ASSERT_TRUE(busy.ok() && *busy);
  ASSERT_TRUE(cache.Take(At(2000), 40, 0).ok());
  auto none = cache.Take(At(3000), 41, 0);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
  EXPECT_EQ(nic.regions.load(), 2);
  auto never = cache.Take(At(3000), 101, 0);
  ASSERT_TRUE(never.ok());
  EXPECT_FALSE(*never);
  EXPECT_EQ(cache.counters().no_room, 2u);
  busy->Reset();
  auto now = cache.Take(At(3000), 41, 0);
  EXPECT_TRUE(now.ok() && *now);
}

TEST(RegistrationCacheTest, InvalidationReachesUnusedUsedAndPending) {
  CountingNic nic;
  RegistrationCache cache(&nic, RegistrationCacheOptions());
  ASSERT_TRUE(cache.Take(At(1000), 100, 0).ok());
  EXPECT_EQ(cache.Invalidate(At(1100), 50), 0u);
  EXPECT_EQ(nic.regions.load(), 1);
  EXPECT_EQ(cache.Invalidate(At(1099), 1), 0u);
  EXPECT_EQ(nic.regions.load(), 0);

  auto used = cache.Take(At(1000), 100, 0);
  ASSERT_TRUE(used.ok());
  EXPECT_EQ(cache.Invalidate(At(0), 5000), 1u);
  EXPECT_EQ(cache.Invalidate(At(0), 5000), 1u) << "it is still in use";
  EXPECT_EQ(nic.regions.load(), 1);
  auto again = cache.Take(At(1000), 100, 0);
  ASSERT_TRUE(again.ok());
  EXPECT_NE(again->region(), used->region());
  used->Reset();
  EXPECT_EQ(nic.regions.load(), 1);
  again->Reset();

  size_t pending = 0;
  nic.on_register = [&] { pending = cache.Invalidate(At(7000), 1); };
  auto late = cache.Take(At(7000), 100, 0);
  nic.on_register = nullptr;
  ASSERT_TRUE(late.ok() && *late);
  EXPECT_EQ(pending, 1u);
  late->Reset();
  EXPECT_EQ(nic.regions.load(), 1) << "only 1000 is kept";
}

TEST(RegistrationCacheTest, FullNicMakesItTrim) {
  CountingNic nic;
  nic.max_regions = 2;
  RegistrationCache cache(&nic, RegistrationCacheOptions());
  ASSERT_TRUE(cache.Take(At(1000), 10, 0).ok());
  auto busy = cache.Take(At(2000), 10, 0);
  ASSERT_TRUE(busy.ok());
  auto third = cache.Take(At(3000), 10, 0);
  ASSERT_TRUE(third.ok() && *third);
  const auto fourth = cache.Take(At(4000), 10, 0);
  EXPECT_EQ(fourth.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.counters().failures, 1u);
  EXPECT_EQ(cache.counters().bytes_in_use, 20u);
  EXPECT_EQ(cache.Take(nullptr, 10, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.Take(At(10), 0, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.Take(At(10), ~uint64_t{0}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RegistrationCacheTest, NicIsCalledWithoutTheLock) {
  CountingNic nic;
  RegistrationCacheOptions options;
  options.max_regions = 1;
  RegistrationCache cache(&nic, options);
  // Both would deadlock if the cache's mutex were held.
  int calls = 0;
  nic.on_register = nic.on_deregister = [&] { calls += cache.counters().regions <= 1 ? 1 : 0; };
  ASSERT_TRUE(cache.Take(At(1000), 10, 0).ok());
  ASSERT_TRUE(cache.Take(At(2000), 10, 0).ok());
  cache.Invalidate(At(0), 10000);
  auto used = cache.Take(At(2000), 10, 0);
  cache.Invalidate(At(0), 10000);
  used->Reset();
  ASSERT_TRUE(cache.Take(At(2000), 10, 0).ok());
  cache.Trim();
  EXPECT_EQ(calls, 8);
}

// Follows the rules by brute force.
struct Model {
  struct Kept {
    uint64_t begin;
    uint64_t end;
    uint32_t access;
    int users;
    bool forgotten;
    uint64_t last_use;
    const Region* region;
  };
  std::vector<Kept> kept;

  uint64_t Bytes(bool in_use) const {
    uint64_t sum = 0;
    for (const Kept& k : kept) sum += !in_use || k.users > 0 ? k.end - k.begin : 0;
    return sum;
  }
  size_t Regions(bool in_use) const {
    return static_cast<size_t>(std::count_if(
        kept.begin(), kept.end(), [in_use](const Kept& k) { return !in_use || k.users > 0; }));
  }
};

TEST(RegistrationCacheTest, AgreesWithTheModel) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](uint64_t below) { return random() % below; };
    CountingNic nic;
    RegistrationCacheOptions options;
    options.max_bytes = 600;
    options.max_regions = 8;
    RegistrationCache cache(&nic, options);
    Model model;
    struct Use {
      Registration registration;
      const Region* region;
    };
    std::vector<Use> uses;
    for (uint64_t turn = 1; turn <= 3000; ++turn) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, " turn ", turn));
      const uint64_t begin = 1 + draw(400);
      const uint64_t bytes = 1 + draw(1 + draw(150));
      const uint64_t kind = draw(10);
      if (kind < 5) {
        const auto access = static_cast<uint32_t>(draw(2));
        auto taken = cache.Take(At(begin), bytes, access);
        ASSERT_TRUE(taken.ok());
        std::vector<const Region*> fitting;
        for (const Model::Kept& k : model.kept) {
          const bool fits =
              !k.forgotten && k.access == access && k.begin <= begin && k.end >= begin + bytes;
          if (fits) fitting.push_back(k.region);
        }
        if (!fitting.empty()) {
          ASSERT_TRUE(*taken);
          ASSERT_NE(std::find(fitting.begin(), fitting.end(), taken->region()), fitting.end());
        } else if (model.Bytes(true) + bytes > options.max_bytes ||
                   model.Regions(true) >= options.max_regions) {
          ASSERT_FALSE(*taken);
          continue;
        } else {
          ASSERT_TRUE(*taken);
          while (model.Bytes(false) + bytes > options.max_bytes ||
                 model.Regions(false) >= options.max_regions) {
            auto oldest = model.kept.end();
            for (auto it = model.kept.begin(); it != model.kept.end(); ++it) {
              if (it->users > 0) continue;
              if (oldest == model.kept.end() || it->last_use < oldest->last_use) oldest = it;
            }
            ASSERT_NE(oldest, model.kept.end());
            model.kept.erase(oldest);
          }
          model.kept.push_back({begin, begin + bytes, access, 0, false, 0, taken->region()});
        }
        for (Model::Kept& k : model.kept) k.users += k.region == taken->region() ? 1 : 0;
        const Region* const region = taken->region();
        uses.push_back({*std::move(taken), region});
      } else if (kind < 9 && !uses.empty()) {
        const size_t which = draw(uses.size());
        const Region* const region = uses[which].region;
        uses.erase(uses.begin() + static_cast<int64_t>(which));
        for (auto it = model.kept.begin(); it != model.kept.end(); ++it) {
          if (it->region != region) continue;
          it->last_use = turn;
          if (--it->users == 0 && it->forgotten) model.kept.erase(it);
          break;
        }
      } else {
        size_t in_use = 0;
        for (auto it = model.kept.begin(); it != model.kept.end();) {
          const bool hit = it->begin < begin + bytes && it->end > begin;
          it->forgotten |= hit;
          in_use += hit && it->users > 0 ? 1 : 0;
          it = hit && it->users == 0 ? model.kept.erase(it) : std::next(it);
        }
        ASSERT_EQ(cache.Invalidate(At(begin), bytes), in_use);
      }
      const RegistrationCacheCounters counters = cache.counters();
      ASSERT_EQ(counters.bytes, model.Bytes(false));
      ASSERT_EQ(counters.bytes_in_use, model.Bytes(true));
      ASSERT_EQ(counters.regions, model.Regions(false));
      ASSERT_EQ(counters.regions_in_use, model.Regions(true));
      ASSERT_EQ(nic.regions.load(), static_cast<int>(model.kept.size()));
      ASSERT_EQ(nic.bytes.load(), static_cast<int64_t>(model.Bytes(false)));
    }
  }
}

TEST(RegistrationCacheTest, ThreadsTakeGiveAndInvalidateAtOnce) {
  CountingNic nic;
  RegistrationCacheOptions options;
  options.max_bytes = 4000;
  options.max_regions = 12;
  {
    RegistrationCache cache(&nic, options);
    std::atomic<uint64_t> wrong{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        std::vector<Registration> held;
        for (int i = 0; i < 20000; ++i) {
          const uint64_t begin = 1 + random() % 1000;
          const uint64_t bytes = 1 + random() % 500;
          if (random() % 20 == 0) cache.Invalidate(At(begin), bytes);
          auto taken = cache.Take(At(begin), bytes, 0);
          if (!taken.ok()) {
            ++wrong;
          } else if (*taken) {
            const Region& region = *taken->region();
            const bool contains =
                region.address() <= begin && region.address() + region.bytes() >= begin + bytes;
            wrong += contains ? 0 : 1;
            held.push_back(*std::move(taken));
          }
          if (held.size() > random() % 3) held.erase(held.begin());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0u);
    const RegistrationCacheCounters counters = cache.counters();
    EXPECT_EQ(counters.bytes_in_use, 0u);
    EXPECT_EQ(counters.regions_in_use, 0u);
    EXPECT_LE(counters.bytes, options.max_bytes);
    EXPECT_EQ(counters.hits + counters.misses, 80000u);
    EXPECT_EQ(static_cast<int>(counters.regions), nic.regions.load());
  }
  EXPECT_EQ(nic.regions.load(), 0);
}

}  // namespace
}  // namespace tryst
