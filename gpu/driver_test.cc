#include "gpu/driver.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

constexpr char kFake[] = "tests/doubles/cuda/libfake_cuda.so";

TEST(CudaDriverTest, WithoutADriverItSaysWhatToInstall) {
  auto driver = CudaDriver::Load("libno-such-cuda.so.1");
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(driver.status().message()), HasSubstr("install"));
}

TEST(CudaDriverTest, AnotherLibraryIsRefused) {
  auto driver = CudaDriver::Load("libc.so.6");
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(driver.status().message()), HasSubstr("cuLaunchKernel"));
}

TEST(CudaDriverTest, ListsDevices) {
  unsetenv("FAKE_CUDA_INIT");
  auto driver = CudaDriver::Load(kFake);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ((*driver)->version(), 13000);
  auto devices = (*driver)->Devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1].ordinal, 1);
  EXPECT_EQ((*devices)[1].name, "Card 41");
  EXPECT_EQ((*devices)[1].pci_bus_id, "0000:29:00.0");
  EXPECT_EQ((*devices)[1].compute_major, 9);
  EXPECT_EQ((*devices)[1].compute_minor, 0);
  EXPECT_EQ((*devices)[1].memory_bytes, uint64_t{41} << 30);
}

TEST(CudaDriverTest, ADriverThatDoesNotStartGivesItsReason) {
  setenv("FAKE_CUDA_INIT", "100", 1);
  auto driver = CudaDriver::Load(kFake);
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(driver.status().message()), HasSubstr("no CUDA-capable device"));
  setenv("FAKE_CUDA_INIT", "999", 1);
  EXPECT_THAT(std::string(CudaDriver::Load(kFake).status().message()), HasSubstr("999"));
  unsetenv("FAKE_CUDA_INIT");
}

TEST(CudaDriverTest, TheMachinesOwnDriverEitherWorksOrSaysWhyNot) {
  auto driver = CudaDriver::Load();
  if (!driver.ok()) GTEST_SKIP() << driver.status().message();
  auto devices = (*driver)->Devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  for (const GpuDevice& device : *devices) EXPECT_FALSE(device.pci_bus_id.empty());
}

}  // namespace
}  // namespace tryst
