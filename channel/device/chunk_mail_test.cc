#include "channel/device/chunk_mail.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uint64_t kLayout = 77;

OfferedChunk ByDescriptor(uint64_t id) {
  return {{id, 4096}, ChunkHandle(open("/dev/null", O_RDONLY | O_CLOEXEC))};
}

OfferedChunk ByFabric(uint64_t id) {
  cuda::FabricHandle fabric{};
  memset(&fabric, static_cast<int>(id), sizeof(fabric));
  return {{id, 4096}, ChunkHandle(fabric)};
}

TEST(ChunkMailTest, HandlesOfEitherKindComeInTheirOrder) {
  const auto mailbox = ChunkMailbox::Open();
  ASSERT_TRUE(mailbox.ok()) << mailbox.status();
  std::vector<OfferedChunk> offered;
  for (uint64_t id = 1; id <= 40; ++id) {
    offered.push_back(id % 3 == 0 ? ByFabric(id) : ByDescriptor(id));
  }
  ASSERT_TRUE(SendChunks((*mailbox)->name(), (*mailbox)->token(), kLayout, 0, offered).ok());
  std::vector<OfferedChunk> got;
  ASSERT_TRUE((*mailbox)->Collect(kLayout, &got).ok());
  ASSERT_EQ(got.size(), offered.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].chunk, offered[i].chunk);
    ASSERT_EQ(got[i].handle.is_fabric(), offered[i].handle.is_fabric());
    if (got[i].handle.is_fabric()) {
      EXPECT_EQ(0, memcmp(&got[i].handle.fabric(), &offered[i].handle.fabric(),
                          sizeof(cuda::FabricHandle)));
    } else {
      struct stat status;
      EXPECT_EQ(fstat(got[i].handle.fd(), &status), 0);
    }
  }
}

// A socket that listens, or is connected, at the name of a mailbox.
OwnedFd SocketAt(const std::string& name, bool listens) {
  OwnedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const std::string path = absl::StrCat("tryst-chunks-", name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, path.data(), path.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(listens ? bind(fd.get(), to, length) : connect(fd.get(), to, length), 0);
  if (listens) {
    EXPECT_EQ(listen(fd.get(), 1), 0);
  }
  return fd;
}

// What SendChunks() says of one chunk, without a descriptor that goes with it.
std::string PacketOf(OfferedChunk chunk, const std::string& token) {
  const std::string other(32, 'b');
  const OwnedFd listener = SocketAt(other, /*listens=*/true);
  std::vector<OfferedChunk> offered;
  offered.push_back(std::move(chunk));
  EXPECT_TRUE(SendChunks(other, token, kLayout, 0, offered).ok());
  const OwnedFd accepted(accept(listener.get(), nullptr, nullptr));
  std::string packet(1 << 16, '\0');
  const ssize_t bytes = read(accepted.get(), &packet[0], packet.size());
  EXPECT_GT(bytes, 0);
  packet.resize(static_cast<size_t>(bytes));
  return packet;
}

// What the mailbox takes of a stranger who sends these.
size_t Taken(ChunkMailbox* mailbox, const std::vector<std::string>& packets) {
  const OwnedFd stranger = SocketAt(mailbox->name(), /*listens=*/false);
  for (const std::string& packet : packets) {
    EXPECT_EQ(write(stranger.get(), packet.data(), packet.size()),
              static_cast<ssize_t>(packet.size()));
  }
  std::vector<OfferedChunk> got;
  const bool any = mailbox->Collect(kLayout, &got).ok();
  EXPECT_EQ(any, !got.empty());
  return got.size();
}

TEST(ChunkMailTest, WhoSendsFewerDescriptorsThanHeSaysIsPassedOver) {
  const auto mailbox = ChunkMailbox::Open();
  ASSERT_TRUE(mailbox.ok()) << mailbox.status();
  const std::string lacking = PacketOf(ByDescriptor(1), (*mailbox)->token());
  const std::string whole = PacketOf(ByFabric(1), (*mailbox)->token());
  EXPECT_EQ(Taken(mailbox->get(), {lacking}), 0u);
  EXPECT_EQ(Taken(mailbox->get(), {lacking, whole}), 0u) << "nor is anything else of his taken";
}

// Else he could send such packets faster than they are read.
TEST(ChunkMailTest, WhoSendsNothingIsPassedOver) {
  const auto mailbox = ChunkMailbox::Open();
  ASSERT_TRUE(mailbox.ok()) << mailbox.status();
  const std::string packet = PacketOf(ByFabric(1), (*mailbox)->token());
  std::string of_none = packet;
  of_none.replace(sizeof(uint32_t), sizeof(uint32_t), sizeof(uint32_t), '\0');  // Its count.
  EXPECT_EQ(Taken(mailbox->get(), {of_none, packet}), 0u);
  EXPECT_EQ(Taken(mailbox->get(), {packet}), 1u);
}

}  // namespace
}  // namespace tryst
