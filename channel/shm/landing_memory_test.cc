#include "channel/shm/landing_memory.h"

#include <cstring>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(LandingMemoryTest, IsWholeAlignedAndWritable) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, static_cast<int64_t>(kLandingHugeBytes) - 1,
                              static_cast<int64_t>(kLandingHugeBytes),
                              static_cast<int64_t>(kLandingHugeBytes) + 1, int64_t{33} << 20}) {
    auto made = AllocateLanding(DType::kUint8, {bytes});
    ASSERT_TRUE(made.ok()) << made.status();
    ASSERT_EQ(made->bytes(), static_cast<uint64_t>(bytes));
    EXPECT_TRUE(made->on_host());
    if (bytes == 0) continue;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(made->data()) % Tensor::kAlignment, 0u);
    memset(made->mutable_data(), 7, made->bytes());
    EXPECT_EQ(made->data_as<uint8_t>()[bytes - 1], 7);
  }
}

TEST(LandingMemoryTest, StringsAndWhatIsTooLarge) {
  EXPECT_EQ(AllocateLanding(DType::kString, {3})->strings().size(), 3u);
  EXPECT_EQ(AllocateLanding(DType::kUint8, {int64_t{1} << 55}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(AllocateLanding(DType::kInt64, {int64_t{1} << 61}).ok()) << "no number says it";
}

}  // namespace
}  // namespace tryst
