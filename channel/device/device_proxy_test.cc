#include "channel/device/device_proxy.h"

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "tests/doubles/cuda/fake_cuda.h"

namespace tryst {
namespace {

// No fetch and no serve knows of it: a device context began it.
TEST(DeviceProxyTest, WhoStopsWaitsForEveryCopy) {
  const FakeCudaControl* const fake = LoadFakeCuda();
  ASSERT_NE(fake, nullptr);
  const auto driver = *CudaDriver::Load("tests/doubles/cuda/libfake_cuda.so");
  const auto gpu = *Gpu::Open(driver.get(), 0);
  const SteadyClock clock;
  Poller poller(&clock);
  auto proxy = *DeviceProxy::Open(&poller, {gpu.get()}, /*source=*/nullptr, DeviceProxyOptions());
  proxy->SetChannels(nullptr);
  poller.Start();
  const Tensor from = *Tensor::Allocate(DType::kUint8, {1000});
  Tensor into = *proxy->engine(0)->Allocate(DType::kUint8, {1000}, nullptr);
  std::atomic<bool> copied{false};
  fake->hold(true);
  proxy->engine(0)->StartCopy(from, into, nullptr, [&copied](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    copied = true;
  });
  const absl::Status early = proxy->Stop(absl::ZeroDuration());
  EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
  EXPECT_FALSE(copied);
  fake->hold(false);
  const absl::Status stopped = proxy->Stop(absl::InfiniteDuration());
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_TRUE(copied);
  poller.Stop();
  into.Reset();
  proxy.reset();
  EXPECT_STREQ(fake->complaints(), "");
}

}  // namespace
}  // namespace tryst
