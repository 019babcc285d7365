// Large tensors on every path, with and without the caller's memory; prints one JSON line for each.
// Run by hand: it needs 14 GiB of memory.
//
//   large_test [--bytes=4294967297]
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

constexpr uint64_t kStride = 1 << 20;
constexpr int64_t kHalfGig = int64_t{520} << 20;      // More than half of shm_bytes.
constexpr int64_t kFourGig = (int64_t{4} << 30) + 1;  // More than 32 bits.

// Each MiB begins with its number. The last byte differs from all of them.
void Mark(const Tensor& tensor) {
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data());
  memset(bytes, 0x5a, tensor.bytes());
  for (uint64_t at = 0; at + sizeof(at) <= tensor.bytes(); at += kStride) {
    memcpy(bytes + at, &at, sizeof(at));
  }
  bytes[tensor.bytes() - 1] = 0x7e;
}
bool IsMarked(const Tensor& tensor, uint64_t bytes) {
  if (tensor.bytes() != bytes) return false;
  const auto* data = tensor.data_as<uint8_t>();
  for (uint64_t at = 0; at + sizeof(at) <= bytes; at += kStride) {
    if (memcmp(data + at, &at, sizeof(at)) != 0) return false;
  }
  return data[bytes - 1] == 0x7e;
}

// Sends a tensor of `bytes` under each of two names.
int SendLarge(const Worker& self, const Numbers& numbers, WireLine* line) {
  auto step = self.Step(1);
  const Tensor tensor = *Tensor::Allocate(DType::kUint8, TensorShape({numbers.at("bytes")}));
  Mark(tensor);
  for (const char* edge : {"given", "none"}) {
    if (!step->Send(self.KeyTo(kThisEnd, edge), {}, tensor, false).ok()) return 2;
  }
  if (!step->Send(self.KeyTo(kThisEnd, "hello"), {}, Numbered(1, 1), false).ok()) return 2;
  std::string word;
  (void)line->Hear(&word, absl::Minutes(10));
  return 0;
}

// How long the system takes to hand out so much new memory. Every receive without a destination
// includes it, on any path.
double FirstTouchSeconds(int64_t bytes) {
  const int64_t begun_ns = SteadyNs();
  void* const memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  memset(memory, 1, static_cast<size_t>(bytes));
  const double seconds = static_cast<double>(SteadyNs() - begun_ns) / 1e9;
  munmap(memory, static_cast<size_t>(bytes));
  return seconds;
}

class Large : public testing::TestWithParam<TestedPath> {
 protected:
  // Receives the tensor. Lowers `took` to the time in seconds that this took.
  void Comes(int64_t bytes, bool destination, const std::vector<std::string>& settings = {},
             double* took = nullptr) {
    const PromisePair pair(GetParam(), settings);
    auto other = pair.Start("send large", {{"bytes", bytes}});
    ASSERT_TRUE(other->AwaitReady());
    auto step = pair.self().Step(1);
    ASSERT_TRUE(step->Recv(other->Key("hello"), {}, absl::Seconds(60)).ok());
    RecvArgs args;
    if (destination) {
      args.destination = *Tensor::Allocate(DType::kUint8, TensorShape({bytes}));
      memset(args.destination.mutable_data(), 0, args.destination.bytes());
    }
    const int64_t begun_ns = SteadyNs();
    auto got = step->Recv(other->Key(destination ? "given" : "none"), args, absl::Seconds(120));
    const double seconds = static_cast<double>(SteadyNs() - begun_ns) / 1e9;
    if (took != nullptr) *took = std::min(*took, seconds);
    const double touch = destination ? 0 : FirstTouchSeconds(bytes);
    std::printf(
        "{\"path\":\"%s\",\"bytes\":%lld,\"destination\":%s,\"status\":\"%s\",\"seconds\":%.3f,"
        "\"gb_per_s\":%.2f,\"first_touch_seconds\":%.3f}\n",
        GetParam().name, static_cast<long long>(bytes), destination ? "true" : "false",
        absl::StatusCodeToString(got.status().code()).c_str(), seconds,
        got.ok() ? static_cast<double>(bytes) / seconds / 1e9 : 0.0, touch);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(IsMarked(got->tensor, static_cast<uint64_t>(bytes)));
    if (destination) {
      EXPECT_EQ(got->tensor.data(), args.destination.data());
    }
    (void)other->line()->Say("end");
  }
};
INSTANTIATE_TEST_SUITE_P(, Large, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

// Two sizes that are nearly the same; the second is more than half of shm_bytes.
TEST_P(Large, TheRateDoesNotFallWithTheSize) {
  SKIP_IF_KNOWN();
  double below = 1e9, above = 1e9;
  for (int i = 0; i < 5; ++i) {
    ASSERT_NO_FATAL_FAILURE(Comes(int64_t{120} << 20, false, {"--shm_bytes=256MiB"}, &below));
    ASSERT_NO_FATAL_FAILURE(Comes(int64_t{136} << 20, false, {"--shm_bytes=256MiB"}, &above));
  }
  EXPECT_LT(above, below * 2.5);
}

TEST_P(Large, Of520MiB) {
  SKIP_IF_KNOWN();
  Comes(kHalfGig, false);
}
TEST_P(Large, Of520MiBIntoADestination) {
  SKIP_IF_KNOWN();
  Comes(kHalfGig, true);
}
TEST_P(Large, Of4GiBAndOne) {
  SKIP_IF_KNOWN();
  Comes(TestFlag("bytes", kFourGig), false);
}
TEST_P(Large, Of4GiBAndOneIntoADestination) {
  SKIP_IF_KNOWN();
  Comes(TestFlag("bytes", kFourGig), true);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv, {{"send large", &tryst::SendLarge}});
}
