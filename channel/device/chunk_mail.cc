#include "channel/device/chunk_mail.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr uint32_t kMailMagic = 0x314d4354;  // "TCM1"
constexpr uint32_t kChunksPerPacket = 32;
constexpr size_t kTokenBytes = 16;
constexpr int kMostSenders = 16;  // A bound on senders, because strangers could keep us busy.
constexpr uint32_t kByDescriptor = 1;
constexpr uint32_t kByFabric = 2;

struct Entry {
  uint64_t id;
  uint64_t bytes;
  uint32_t kind;
  uint32_t reserved;
  cuda::FabricHandle fabric;
};
struct Packet {
  uint32_t magic;
  uint32_t count;
  uint64_t layout;
  uint64_t first;
  unsigned char token[kTokenBytes];
  Entry entries[kChunksPerPacket];
};

std::string RandomHex() {
  std::string bytes(kTokenBytes, '\0');
  TRYST_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(bytes);
}

OwnedFd NewSocket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// An abstract address. The name is one that we made, or 32 digits from a peer.
socklen_t AddressOfBox(const std::string& name, sockaddr_un* address) {
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  const std::string whole = absl::StrCat("tryst-chunks-", name);
  memcpy(address->sun_path + 1, whole.data(), whole.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + whole.size());
}

// Whether our user runs the peer, or root, who can read our memory anyway.
bool IsOurUser(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

// Receives the next packet and its descriptors. False: there is none, or only a part of one.
bool ReceivePacket(int fd, Packet* packet, std::vector<OwnedFd>* descriptors) {
  iovec part{packet, sizeof(*packet)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE((kChunksPerPacket + 1) * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return false;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= head->cmsg_len; at += sizeof(int)) {
      int value;
      memcpy(&value, CMSG_DATA(head) + at, sizeof(value));
      descriptors->emplace_back(value);
    }
  }
  return got == sizeof(*packet) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
}

// Handles the packet of one sender. False: it is a stranger's, or is invalid.
bool TakePacket(const Packet& packet, std::vector<OwnedFd> descriptors, absl::string_view token,
                uint64_t layout, std::vector<OfferedChunk>* chunks) {
  const absl::string_view its_token(reinterpret_cast<const char*>(packet.token), kTokenBytes);
  if (packet.magic != kMailMagic || absl::BytesToHexString(its_token) != token ||
      packet.count == 0 || packet.count > kChunksPerPacket || packet.layout != layout ||
      packet.first != chunks->size() || chunks->size() + packet.count > kMostChunks) {
    return false;
  }
  const auto by_descriptor =
      std::count_if(packet.entries, packet.entries + packet.count,
                    [](const Entry& entry) { return entry.kind == kByDescriptor; });
  if (static_cast<size_t>(by_descriptor) != descriptors.size()) return false;
  size_t next = 0;
  for (uint32_t i = 0; i < packet.count; ++i) {
    const Entry& entry = packet.entries[i];
    chunks->push_back({{entry.id, entry.bytes},
                       entry.kind == kByDescriptor ? ChunkHandle(descriptors[next++].release())
                                                   : ChunkHandle(entry.fabric)});
  }
  return true;
}

absl::Status SendPacket(int fd, const Packet& packet, const std::vector<int>& descriptors) {
  iovec part{const_cast<Packet*>(&packet), sizeof(packet)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kChunksPerPacket * sizeof(int))] = {};
  const size_t bytes = descriptors.size() * sizeof(int);
  if (bytes > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(head), descriptors.data(), bytes);
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the file descriptors of a GPU's memory cannot be sent to the consumer: ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkMailbox>> ChunkMailbox::Open() {
  const std::string name = RandomHex();
  sockaddr_un address;
  const socklen_t length = AddressOfBox(name, &address);
  OwnedFd fd = NewSocket();
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), kMostSenders) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot open a local socket to receive the file descriptors of GPU memory: ",
                     strerror(errno)));
  }
  return std::unique_ptr<ChunkMailbox>(new ChunkMailbox(std::move(fd), name, RandomHex()));
}

absl::Status ChunkMailbox::Collect(uint64_t layout, std::vector<OfferedChunk>* chunks) {
  const size_t before = chunks->size();
  Packet packet;
  for (int i = 0; i < kMostSenders; ++i) {
    const OwnedFd sender(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!sender.valid()) break;
    if (!IsOurUser(sender.get())) continue;
    for (;;) {
      std::vector<OwnedFd> descriptors;
      if (!ReceivePacket(sender.get(), &packet, &descriptors)) break;
      if (!TakePacket(packet, std::move(descriptors), token_, layout, chunks)) break;
    }
  }
  if (chunks->size() > before) return absl::OkStatus();
  return absl::UnavailableError(
      "the producer has not sent the file descriptors of its GPU's memory");
}

absl::Status SendChunks(const std::string& name, const std::string& token, uint64_t layout,
                        uint64_t first, absl::Span<const OfferedChunk> chunks) {
  TRYST_CHECK(chunks.size() <= kChunksPerMail);
  const std::string token_bytes = absl::HexStringToBytes(token);
  if (name.size() != 2 * kTokenBytes || token_bytes.size() != kTokenBytes) {
    return absl::InvalidArgumentError(
        "the consumer's request for a GPU's memory is malformed: its socket name or token has a "
        "wrong length");
  }
  sockaddr_un address;
  const socklen_t length = AddressOfBox(name, &address);
  OwnedFd fd = NewSocket();
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return absl::UnimplementedError(
        absl::StrCat("the file descriptors of a GPU's memory cannot be sent to the consumer, which "
                     "may be in another network namespace: ",
                     strerror(errno)));
  }
  if (!IsOurUser(fd.get())) {
    return absl::UnimplementedError(
        "the producer sends the file descriptors of its GPU's memory only to processes of its own "
        "user, and the consumer is of another");
  }
  for (size_t at = 0; at < chunks.size(); at += kChunksPerPacket) {
    Packet packet{};
    packet.magic = kMailMagic;
    packet.layout = layout;
    packet.first = first + at;
    packet.count = static_cast<uint32_t>(std::min<size_t>(kChunksPerPacket, chunks.size() - at));
    memcpy(packet.token, token_bytes.data(), kTokenBytes);
    std::vector<int> descriptors;
    for (uint32_t i = 0; i < packet.count; ++i) {
      const OfferedChunk& offered = chunks[at + i];
      Entry& entry = packet.entries[i];
      entry.id = offered.chunk.id;
      entry.bytes = offered.chunk.bytes;
      entry.kind = offered.handle.is_fabric() ? kByFabric : kByDescriptor;
      entry.fabric = offered.handle.fabric();
      if (!offered.handle.is_fabric()) descriptors.push_back(offered.handle.fd());
    }
    const absl::Status sent = SendPacket(fd.get(), packet, descriptors);
    if (!sent.ok()) return sent;
  }
  return absl::OkStatus();
}

}  // namespace tryst
