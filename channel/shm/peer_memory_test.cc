#include "channel/shm/peer_memory.h"

#include <unistd.h>

#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr size_t kProbeBytes = 16;

// Ourselves, whom the kernel lets read us.
class PeerMemoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<PeerMemory> Probe(pid_t pid, const void* expected) const {
    return PeerMemory::Probe(pid, reinterpret_cast<uint64_t>(bytes_),
                             static_cast<const uint8_t*>(expected), kProbeBytes);
  }
  const char bytes_[kProbeBytes + 1] = "sixteen of bytes";
};

TEST_F(PeerMemoryTest, IsReadWhereTheProbeIsRight) {
  const auto peer = Probe(getpid(), bytes_);
  ASSERT_TRUE(peer->status().ok()) << peer->status();
  char got[8] = {};
  EXPECT_TRUE(peer->Read(reinterpret_cast<uint64_t>(bytes_) + 8, got, 7).ok());
  EXPECT_EQ(std::string(got), std::string(bytes_).substr(8, 7));
  EXPECT_TRUE(absl::IsPermissionDenied(peer->Read(4096, got, 7))) << "nothing is there";
}

// The number may be another process's, in a namespace of its own.
TEST_F(PeerMemoryTest, IsNotReadWhereTheProbeIsWrong) {
  char expected[kProbeBytes];
  memcpy(expected, bytes_, kProbeBytes);
  expected[kProbeBytes - 1] ^= 1;
  EXPECT_TRUE(absl::IsUnimplemented(Probe(getpid(), expected)->status()));
}

TEST_F(PeerMemoryTest, IsNotReadOfNobody) {
  const absl::Status nobody = Probe(0, bytes_)->status();
  EXPECT_TRUE(absl::IsUnimplemented(nobody));
  EXPECT_NE(nobody.message().find("in another pid namespace"), absl::string_view::npos) << nobody;
  EXPECT_TRUE(absl::IsUnimplemented(Probe(1 << 30, bytes_)->status()));
}

}  // namespace
}  // namespace tryst
