#include "verbs/soft/handshake.h"

#include <cstring>

#include "absl/status/status.h"
#include "base/little_endian.h"

namespace tryst {
namespace {

constexpr uint32_t kAddressMagic = 0x41595254;  // "TRYA"
constexpr uint32_t kHelloMagic = 0x48595254;    // "TRYH"
constexpr uint16_t kVersion = 1;
constexpr size_t kAddressFixedBytes = 28;
constexpr size_t kMaxListenerBytes = 200;

}  // namespace

bool TokensEqual(const Token& a, const Token& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

std::string EncodeSoftAddress(const SoftAddress& address) {
  uint8_t fixed[kAddressFixedBytes] = {};
  StoreLittle<uint32_t>(fixed, kAddressMagic);
  fixed[4] = kVersion;
  fixed[5] = address.sockets;
  fixed[6] = address.tls ? 1 : 0;
  StoreLittle<uint32_t>(fixed + 8, address.number);
  memcpy(fixed + 12, address.token.data(), address.token.size());
  return std::string(reinterpret_cast<const char*>(fixed), sizeof(fixed)) + address.listener;
}

absl::StatusOr<SoftAddress> DecodeSoftAddress(absl::string_view bytes) {
  if (bytes.size() <= kAddressFixedBytes || bytes.size() > kAddressFixedBytes + kMaxListenerBytes) {
    return absl::InvalidArgumentError("not the address of a soft queue pair: wrong length");
  }
  const uint8_t* in = reinterpret_cast<const uint8_t*>(bytes.data());
  if (LoadLittle<uint32_t>(in) != kAddressMagic || in[4] != kVersion || in[5] == 0 || in[6] > 1 ||
      in[7] != 0) {
    return absl::InvalidArgumentError("not the address of a soft queue pair of this version");
  }
  SoftAddress address;
  address.sockets = in[5];
  address.tls = in[6] == 1;
  address.number = LoadLittle<uint32_t>(in + 8);
  memcpy(address.token.data(), in + 12, address.token.size());
  address.listener = std::string(bytes.substr(kAddressFixedBytes));
  return address;
}

void EncodeHello(const SoftHello& hello, uint8_t out[kHelloBytes]) {
  StoreLittle<uint32_t>(out, kHelloMagic);
  out[4] = kVersion;
  out[5] = hello.socket;
  out[6] = hello.sockets;
  out[7] = 0;
  StoreLittle<uint32_t>(out + 8, hello.to_number);
  StoreLittle<uint32_t>(out + 12, hello.from_number);
  StoreLittle<uint32_t>(out + 16, hello.receives);
  StoreLittle<uint32_t>(out + 20, 0);
  memcpy(out + 24, hello.token.data(), hello.token.size());
}

bool DecodeHello(const uint8_t in[kHelloBytes], SoftHello* hello) {
  if (LoadLittle<uint32_t>(in) != kHelloMagic || in[4] != kVersion || in[7] != 0) return false;
  hello->socket = in[5];
  hello->sockets = in[6];
  hello->to_number = LoadLittle<uint32_t>(in + 8);
  hello->from_number = LoadLittle<uint32_t>(in + 12);
  hello->receives = LoadLittle<uint32_t>(in + 16);
  memcpy(hello->token.data(), in + 24, hello->token.size());
  return hello->sockets > 0 && hello->socket < hello->sockets && LoadLittle<uint32_t>(in + 20) == 0;
}

}  // namespace tryst
