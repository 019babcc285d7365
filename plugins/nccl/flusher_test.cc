#include "plugins/nccl/flusher.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "verbs/soft/soft_nic.h"

namespace tryst::nccl {
namespace {

// The software NIC stands for one that reaches a GPU.
TEST(FlusherTest, EndsAfterAReadOfWhatWasWritten) {
  absl::StatusOr<std::unique_ptr<SoftNic>> nic = OpenSoftNic({});
  ASSERT_TRUE(nic.ok()) << nic.status();
  std::vector<uint8_t> memory(100);
  absl::StatusOr<std::unique_ptr<Region>> region =
      (*nic)->RegisterRegion(memory.data(), memory.size(), kRemoteRead);
  ASSERT_TRUE(region.ok());
  {
    absl::StatusOr<std::unique_ptr<Flusher>> flusher = Flusher::Make(nic->get());
    ASSERT_TRUE(flusher.ok()) << flusher.status();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE((*flusher)->Start((*region)->address() + 5, (*region)->remote_key()).ok());
    }
    EXPECT_EQ((*flusher)->started(), 3u);
    uint64_t ended = 0;
    while (ended < 3) {
      const absl::StatusOr<uint64_t> now = (*flusher)->Ended();
      ASSERT_TRUE(now.ok()) << now.status();
      ended = *now;
    }
  }
}

TEST(FlusherTest, MemoryThatIsNotRegisteredIsAnError) {
  absl::StatusOr<std::unique_ptr<SoftNic>> nic = OpenSoftNic({});
  ASSERT_TRUE(nic.ok()) << nic.status();
  absl::StatusOr<std::unique_ptr<Flusher>> flusher = Flusher::Make(nic->get());
  ASSERT_TRUE(flusher.ok()) << flusher.status();
  ASSERT_TRUE((*flusher)->Start(0x1000, 99).ok());
  absl::Status error;
  while (error.ok()) error = (*flusher)->Ended().status();
  EXPECT_NE(error.message().find("could not flush"), absl::string_view::npos) << error;
}

}  // namespace
}  // namespace tryst::nccl
