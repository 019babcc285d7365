#include "tests/doubles/soft/hostile_peer.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/log.h"

namespace tryst {

std::string HostilePeer::Address(uint8_t sockets) {
  SoftAddress address;
  address.number = kNumber;
  address.sockets = sockets;
  address.listener = "127.0.0.1:1";
  return EncodeSoftAddress(address);
}

SoftHello HostilePeer::HelloFor(absl::string_view victim_address, uint8_t sockets) {
  const absl::StatusOr<SoftAddress> victim = DecodeSoftAddress(victim_address);
  TRYST_CHECK(victim.ok());
  SoftHello hello;
  hello.token = victim->token;
  hello.to_number = victim->number;
  hello.from_number = kNumber;
  hello.sockets = sockets;
  return hello;
}

HostilePeer::HostilePeer(absl::string_view victim_address) {
  const absl::StatusOr<SoftAddress> victim = DecodeSoftAddress(victim_address);
  TRYST_CHECK(victim.ok());
  const absl::StatusOr<SocketAddress> listener = SocketAddress::Parse(victim->listener);
  TRYST_CHECK(listener.ok());
  fd_ = listener->Dial();
  TRYST_CHECK(fd_.valid());
}

void HostilePeer::Say(const SoftHello& hello) {
  std::vector<uint8_t> bytes(kHelloBytes);
  EncodeHello(hello, bytes.data());
  SayBytes(bytes);
}

void HostilePeer::Say(const FrameHeader& header, const std::vector<uint8_t>& payload) {
  std::vector<uint8_t> bytes(kFrameHeaderBytes);
  EncodeFrameHeader(header, bytes.data());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  SayBytes(bytes);
}

void HostilePeer::SayBytes(const std::vector<uint8_t>& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t more = send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (more > 0) {
      sent += static_cast<size_t>(more);
    } else if (errno != EAGAIN) {
      return;  // The victim has closed the socket, as it may.
    }
  }
}

void HostilePeer::Listen() {
  uint8_t bytes[4096];
  for (;;) {
    const ssize_t got = recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) {
      heard_.insert(heard_.end(), bytes, bytes + got);
      continue;
    }
    closed_ |= got == 0 || errno != EAGAIN;
    return;
  }
}

std::vector<uint8_t> HostilePeer::HearBytes(size_t bytes) {
  Listen();
  if (heard_.size() < bytes) return {};
  const std::vector<uint8_t> taken(heard_.begin(), heard_.begin() + static_cast<ptrdiff_t>(bytes));
  heard_.erase(heard_.begin(), heard_.begin() + static_cast<ptrdiff_t>(bytes));
  return taken;
}

absl::optional<SoftHello> HostilePeer::HearHello() {
  const std::vector<uint8_t> bytes = HearBytes(kHelloBytes);
  SoftHello hello;
  if (bytes.empty() || !DecodeHello(bytes.data(), &hello)) return absl::nullopt;
  return hello;
}

absl::optional<FrameHeader> HostilePeer::HearHeader() {
  const std::vector<uint8_t> bytes = HearBytes(kFrameHeaderBytes);
  FrameHeader header;
  if (bytes.empty() || !DecodeFrameHeader(bytes.data(), &header)) return absl::nullopt;
  return header;
}

void HostilePeer::ForgetWhatWasHeard() {
  Listen();
  heard_.clear();
}

bool HostilePeer::Closed() {
  Listen();
  return closed_ && heard_.empty();
}

}  // namespace tryst
