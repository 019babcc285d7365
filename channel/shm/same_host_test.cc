#include "channel/shm/same_host.h"

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(SameHostTest, MemoryIsSharedWithinOneBootAndOneNetworkNamespace) {
  const HostIdentity ours = {"a-boot-id", 1};
  EXPECT_TRUE(CheckSameHost(ours, ours).ok());
  for (const HostIdentity& theirs :
       {HostIdentity{"another", 1}, HostIdentity{"a-boot-id", 2}, HostIdentity{"", 1}}) {
    EXPECT_TRUE(absl::IsUnimplemented(CheckSameHost(ours, theirs)));
    EXPECT_TRUE(absl::IsUnimplemented(CheckSameHost(theirs, ours)));
  }
}

}  // namespace
}  // namespace tryst
