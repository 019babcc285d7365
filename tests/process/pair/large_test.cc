#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/process/pair/moment.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr uint64_t kStride = 1 << 20;
// More than 32 bits, and not a multiple of a write, a stripe or a page.
constexpr uint64_t kBytes = (uint64_t{4} << 30) + 3 * kStride + 12'345;
constexpr uint64_t kRoom = kBytes + (uint64_t{1} << 30);

uint64_t AvailableBytes() {
  std::ifstream in("/proc/meminfo");
  std::string word;
  uint64_t kib = 0;
  while (in >> word) {
    if (word == "MemAvailable:") in >> kib;
  }
  return kib << 10;
}

// Memory that is only used where it is written.
class Mapping {
 public:
  Mapping() {
    at_ = static_cast<uint8_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    madvise(at_, kBytes, MADV_NOHUGEPAGE);
  }
  ~Mapping() { munmap(at_, kBytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* at() const { return at_; }

 private:
  uint8_t* at_;
};

Tensor TensorOver(const std::shared_ptr<Mapping>& mapping) {
  const TensorShape shape = *TensorShape::Make({static_cast<int64_t>(kBytes)});
  return *Tensor::Adopt(mapping->at(), DType::kUint8, shape, MemorySpace(), [mapping] {});
}

// Each MiB begins with its number, and the rest is zero, except the last byte.
TEST(LargeTest, MoreThan4GiBComeInChunksOverEveryQueuePair) {
  if (AvailableBytes() < kRoom) GTEST_SKIP() << "needs " << (kRoom >> 20) << " MiB of memory";
  WorkerPairOptions options;
  options.open_nic = [] { return *OpenSoftNic(SoftNicOptions()); };
  options.adjust = [](TransportsOptions* pool) {
    pool->link.queue_pairs = 3;
    pool->landing_bytes = kRoom;
    pool->silence_ms = 60'000;  // So that a slow machine does not matter.
    pool->link.stall_ms = 60'000;
  };
  auto source = std::make_shared<Mapping>();
  for (uint64_t at = 0; at + sizeof(at) <= kBytes; at += kStride) {
    memcpy(source->at() + at, &at, sizeof(at));
  }
  source->at()[kBytes - 1] = 0x7e;
  auto landed = std::make_shared<Mapping>();
  {
    WorkerPair pair(options);
    const TensorKey key = WorkerPair::Key("large");
    RecvArgs args;
    args.destination = TensorOver(landed);
    ASSERT_TRUE(pair.step()->Send(key, SendArgs(), TensorOver(source), false).ok());
    Moment ended;
    absl::Status end;
    pair.consumer()->Fetch(1, key, args, [&](Received&& received) {
      EXPECT_EQ(received.tensor.data(), landed->at());
      end = std::move(received.status);
      ended.Come();
    });
    ASSERT_TRUE(ended.Wait(std::chrono::minutes(4)));
    ASSERT_TRUE(end.ok()) << end;
  }
  for (uint64_t at = 0; at < kBytes; at += kStride) {
    const uint64_t bytes = std::min(kStride, kBytes - at);
    ASSERT_EQ(memcmp(landed->at() + at, source->at() + at, bytes), 0) << "from byte " << at;
  }
}

}  // namespace
}  // namespace tryst
