#include "verbs/ibv/ibv_calls.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

TEST(IbvCallsTest, AnAbsentLibraryIsNotFoundAndSaysWhatToInstall) {
  const absl::StatusOr<IbvCalls> calls = LoadIbvCalls("libibverbs-that-is-not.so.1");
  EXPECT_EQ(calls.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(calls.status().message()), HasSubstr("libibverbs1"));
}

TEST(IbvCallsTest, ALibraryWithoutTheVersionsIsTooOld) {
  const absl::StatusOr<IbvCalls> calls = LoadIbvCalls("libm.so.6");
  EXPECT_EQ(calls.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(calls.status().message()),
              HasSubstr("lacks the function ibv_get_device_list@IBVERBS_1.1"));
}

TEST(IbvCallsTest, TheInstalledLibraryHasEverything) {
  const absl::StatusOr<IbvCalls> calls = LoadIbvCalls();
  if (absl::IsNotFound(calls.status())) GTEST_SKIP() << calls.status();
  ASSERT_TRUE(calls.ok()) << calls.status();
  int count = -1;
  // Without a device: an empty list, or an error if the kernel has no RDMA at all.
  ibv_device** const list = calls->get_device_list(&count);
  if (list != nullptr) calls->free_device_list(list);
  EXPECT_TRUE(calls->modify_qp);
  EXPECT_TRUE(calls->reg_mr_iova2);
}

}  // namespace
}  // namespace tryst
