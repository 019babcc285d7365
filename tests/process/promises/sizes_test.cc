// Tensors of every size at which a transport changes its method, on every path, with and without
// the caller's memory: every byte arrives.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/process/promises/known.h"
#include "tests/process/promises/promise_pair.h"
#include "tests/process/promises/receives.h"

namespace tryst {
namespace {

// The limits of a message, an offered landing, a stripe and the NIC's parts, and the sizes next to
// each.
std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes = {0, 1, 7};
  for (int64_t edge : {64, 4096, 8192, 8448, 65'536, 262'144, 1'048'576, 4'194'304}) {
    for (int64_t beside : {-1, 0, 1}) sizes.push_back(edge + beside);
  }
  sizes.push_back(9'000'001);
  return sizes;
}

Tensor Noise(int64_t bytes) {
  Tensor tensor = *Tensor::Allocate(DType::kUint8, TensorShape({bytes}));
  std::mt19937_64 random(static_cast<uint64_t>(bytes));
  auto* data = static_cast<uint8_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    memcpy(data + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
  }
  return tensor;
}
bool IsNoise(const Tensor& tensor, int64_t bytes) {
  const Tensor meant = Noise(bytes);
  return tensor.dtype() == DType::kUint8 && tensor.shape() == meant.shape() &&
         (bytes == 0 || memcmp(tensor.data(), meant.data(), static_cast<size_t>(bytes)) == 0);
}

// A tensor with more dimensions than the wire format has room for.
Tensor OfRank(int64_t rank) {
  std::vector<int64_t> dims(static_cast<size_t>(rank), 1);
  dims[1] = 3;
  dims.back() = 1000;
  Tensor tensor = *Tensor::Allocate(DType::kInt32, *TensorShape::Make(dims));
  for (int32_t i = 0; i < 3000; ++i) static_cast<int32_t*>(tensor.mutable_data())[i] = i;
  return tensor;
}

// Sends a tensor of as many bytes as it is told; if that is negative, of as many dimensions.
int SendSizes(const Worker& self, const Numbers&, WireLine* line) {
  auto step = self.Step(1);
  std::string word;
  int64_t bytes = 0;
  while (line->Hear(&word, absl::Minutes(10)) && absl::SimpleAtoi(word, &bytes)) {
    const Tensor tensor = bytes < 0 ? OfRank(-bytes) : Noise(bytes);
    if (!step->Send(self.KeyTo(kThisEnd, "e"), {}, tensor, false).ok()) return 2;
    if (!line->Say("sent")) return 3;
  }
  return 0;
}

class AllSizes : public testing::TestWithParam<TestedPath> {
 protected:
  void Comes(const PromisePair& pair, OtherEnd* other, int64_t bytes, bool destination,
             bool sent_first) {
    auto step = pair.self().Step(1);
    RecvArgs args;
    if (destination) {
      args.destination = *Tensor::Allocate(DType::kUint8, TensorShape({bytes}));
      memset(args.destination.mutable_data(), 0xee, static_cast<size_t>(bytes));
    }
    std::string word;
    Receives receives;
    if (!sent_first) receives.Make(step.get(), other->Key("e"), args);
    ASSERT_TRUE(other->line()->Say(absl::StrCat(bytes)) && other->line()->Hear(&word));
    if (sent_first) receives.Make(step.get(), other->Key("e"), args);
    ASSERT_TRUE(receives.AwaitAll(absl::Seconds(30))) << bytes << " bytes do not come";
    const Receives::End end = receives.at(0);
    ASSERT_TRUE(end.ok()) << bytes << " bytes: " << end.status;
    EXPECT_TRUE(IsNoise(end.tensor, bytes)) << bytes << " bytes are not what was sent";
    if (destination && bytes > 0) {
      EXPECT_EQ(end.tensor.data(), args.destination.data());
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, AllSizes, testing::ValuesIn(TestedPaths()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AllSizes, ComeWhole) {
  SKIP_IF_KNOWN();
  const PromisePair pair(GetParam());
  auto other = pair.Start("send sizes");
  ASSERT_TRUE(other->AwaitReady());
  for (int64_t bytes : Sizes()) {
    for (int how = 0; how < 4; ++how) {
      ASSERT_NO_FATAL_FAILURE(Comes(pair, other.get(), bytes, how % 2 == 0, how / 2 == 0));
    }
  }
  EXPECT_TRUE(pair.CameByThePath()) << pair.self().server->Explain("");
}

TEST_P(AllSizes, OfManyDimensionsTheyComeInTheirShape) {
  SKIP_IF_KNOWN();
  const PromisePair pair(GetParam());
  auto other = pair.Start("send sizes");
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair.self().Step(1);
  for (int64_t rank : {8, 9, 20, 254}) {
    const Tensor meant = OfRank(rank);
    for (bool destination : {false, true}) {
      RecvArgs args;
      if (destination) args.destination = *Tensor::Allocate(DType::kInt32, meant.shape());
      Receives receives;
      receives.Make(step.get(), other->Key("e"), args);
      std::string word;
      ASSERT_TRUE(other->line()->Say(absl::StrCat(-rank)) && other->line()->Hear(&word));
      ASSERT_TRUE(receives.AwaitAll(absl::Seconds(30))) << rank;
      const Receives::End end = receives.at(0);
      ASSERT_TRUE(end.ok()) << rank << ": " << end.status;
      EXPECT_EQ(end.tensor.shape(), meant.shape());
      EXPECT_EQ(memcmp(end.tensor.data(), meant.data(), meant.bytes()), 0) << rank;
      if (destination) {
        EXPECT_EQ(end.tensor.data(), args.destination.data());
      }
    }
  }
  EXPECT_TRUE(pair.CameByThePath()) << pair.self().server->Explain("");
}

// A tensor that is too large for the memory of one path takes another path: here one of 16 MiB or
// more, with the default settings one of 4 GiB.
TEST_P(AllSizes, LargerThanTheLandingMemoryTheyComeAllTheSame) {
  SKIP_IF_KNOWN();
  const PromisePair pair(GetParam(), {"--landing_bytes=16MiB", "--shm_bytes=16MiB"});
  auto other = pair.Start("send sizes");
  ASSERT_TRUE(other->AwaitReady());
  for (int64_t bytes : {1, 9 << 20, (16 << 20) + 1, 40'000'001}) {
    ASSERT_NO_FATAL_FAILURE(Comes(pair, other.get(), bytes, false, true));
  }
}
TEST_P(AllSizes, LargerThanTheLandingMemoryTheyComeInTheirOrder) {
  SKIP_IF_KNOWN();
  const PromisePair pair(GetParam(), {"--landing_bytes=16MiB", "--shm_bytes=16MiB"});
  auto other = pair.Start("send sizes");
  ASSERT_TRUE(other->AwaitReady());
  auto step = pair.self().Step(1);
  constexpr int64_t kLeast = (16 << 20) + 1;
  constexpr int64_t kTensors = 4;
  for (int round = 0; round < 3; ++round) {
    std::string word;
    for (int64_t i = 0; i < kTensors; ++i) {
      ASSERT_TRUE(other->line()->Say(absl::StrCat(kLeast + i)) && other->line()->Hear(&word));
    }
    Receives receives;
    for (int64_t i = 0; i < kTensors; ++i) receives.Make(step.get(), other->Key("e"));
    ASSERT_TRUE(receives.AwaitAll(absl::Seconds(30)));
    for (int64_t i = 0; i < kTensors; ++i) {
      const Receives::End end = receives.at(static_cast<size_t>(i));
      ASSERT_TRUE(end.ok()) << end.status;
      EXPECT_EQ(end.tensor.bytes(), static_cast<uint64_t>(kLeast + i)) << "receive " << i;
    }
  }
}
TEST_P(AllSizes, LargerThanTheLandingMemoryTheyComeIntoADestination) {
  SKIP_IF_KNOWN();
  const PromisePair pair(GetParam(), {"--landing_bytes=16MiB", "--shm_bytes=16MiB"});
  auto other = pair.Start("send sizes");
  ASSERT_TRUE(other->AwaitReady());
  for (int64_t bytes : {1, 9 << 20, (16 << 20) + 1, 40'000'001}) {
    ASSERT_NO_FATAL_FAILURE(Comes(pair, other.get(), bytes, true, true));
  }
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::RunPromises(argc, argv, {{"send sizes", &tryst::SendSizes}});
}
