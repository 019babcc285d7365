#include "channel/shm/same_host.h"

#include <sys/stat.h>

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

// Else containers of one host that share no network would be told that they share memory.
TEST(SameHostTest, ItsOwnNetworkNamespaceIsTheKernels) {
  struct stat space {};
  ASSERT_EQ(stat("/proc/self/ns/net", &space), 0);
  EXPECT_EQ(OwnHost().network_space, space.st_ino);
  EXPECT_FALSE(OwnHost().boot_id.empty());
}

}  // namespace
}  // namespace tryst
