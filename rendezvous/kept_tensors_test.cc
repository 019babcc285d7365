#include "rendezvous/kept_tensors.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

KeptTensors::Place PlaceOf(int number) {
  return {1,
          TensorKeyPrefix::Make("/job:ps/replica:0/task:0/device:CPU:0", 1,
                                "/job:worker/replica:0/task:0/device:CPU:0", absl::StrCat(number))
              ->At(0, 0)};
}

TEST(KeptTensorsTest, AllThatComesIsKeptAndNothingMoreIsAskedFor) {
  constexpr int kMost = 1024;
  KeptTensors kept;
  EXPECT_TRUE(kept.empty());
  for (int i = 0; i < 2 * kMost; ++i) {
    EXPECT_EQ(kept.Admit(PlaceOf(i)).ok(), i < kMost);
    kept.Keep(PlaceOf(i), {*Tensor::Allocate(DType::kFloat, {1})});
  }
  EXPECT_TRUE(kept.Admit(PlaceOf(0)).ok()) << "its receive may take what is there";
  EXPECT_TRUE(absl::IsResourceExhausted(kept.Admit(PlaceOf(2 * kMost))));
  for (int i = 0; i < 2 * kMost; ++i) {
    EXPECT_FALSE(kept.empty());
    EXPECT_TRUE(kept.TakeFirst(PlaceOf(i)).valid()) << i;
  }
  EXPECT_TRUE(kept.empty());
  EXPECT_TRUE(kept.Admit(PlaceOf(0)).ok());
}

}  // namespace
}  // namespace tryst
