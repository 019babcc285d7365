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

TEST(KeptTensorsTest, SoManyKeysAreKept) {
  constexpr int kMost = 1024;
  KeptTensors kept;
  for (int i = 0; i < 2 * kMost; ++i) kept.Keep(PlaceOf(i), *Tensor::Allocate(DType::kFloat, {1}));
  int left = 0;
  for (int i = 0; i < 2 * kMost; ++i) left += kept.TakeFirst(PlaceOf(i)).valid();
  EXPECT_EQ(left, kMost);
}

}  // namespace
}  // namespace tryst
