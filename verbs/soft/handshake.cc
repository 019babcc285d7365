#include "verbs/soft/handshake.h"

#include <cstring>

#include "absl/status/status.h"
#include "base/little_endian.h"
#include "base/sealing.h"

namespace tryst {
namespace {

constexpr uint32_t kAddressMagic = 0x41595254;  // "TRYA"
constexpr uint32_t kHelloMagic = 0x48595254;    // "TRYH"
constexpr uint16_t kVersion = 1;
constexpr size_t kAddressFixedBytes = 28;
constexpr int kTls = 1;
constexpr int kSealed = 2;
constexpr size_t kSealedBytes = sizeof(Token) + Sealing::kTagBytes;
constexpr absl::string_view kSealingName = "tryst soft address 1";

absl::string_view TextOf(const Token& token) {
  return absl::string_view(reinterpret_cast<const char*>(token.data()), token.size());
}

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
  fixed[6] = address.tls ? kTls : 0;
  StoreLittle<uint32_t>(fixed + 8, address.number);
  memcpy(fixed + 12, address.token.data(), address.token.size());
  return std::string(reinterpret_cast<const char*>(fixed), sizeof(fixed)) + address.listener;
}

// The salt is where the token would be; the sealed token and its tag follow the listener.
std::string SealSoftAddress(const SoftAddress& address, absl::string_view secret,
                            const Token& salt) {
  SoftAddress open = address;
  open.token = salt;
  std::string bytes = EncodeSoftAddress(open);
  bytes[6] |= kSealed;
  Sealing sealing(secret, TextOf(salt), kSealingName);
  sealing.BeginSeal(0, bytes);
  uint8_t sealed[kSealedBytes];
  sealing.Add(address.token.data(), address.token.size(), sealed);
  sealing.EndSeal(sealed + address.token.size());
  return bytes.append(reinterpret_cast<const char*>(sealed), sizeof(sealed));
}

absl::StatusOr<SoftAddress> DecodeSoftAddress(absl::string_view bytes, absl::string_view secret) {
  const size_t behind = secret.empty() ? 0 : kSealedBytes;
  if (bytes.size() <= kAddressFixedBytes + behind ||
      bytes.size() > kAddressFixedBytes + kMaxListenerBytes + behind) {
    return absl::InvalidArgumentError(
        "the peer sent something that is not the address of a soft NIC: its length is wrong");
  }
  const uint8_t* in = reinterpret_cast<const uint8_t*>(bytes.data());
  if (LoadLittle<uint32_t>(in) != kAddressMagic || in[4] != kVersion || in[5] == 0 ||
      (in[6] & ~(kTls | kSealed)) != 0 || in[7] != 0) {
    return absl::InvalidArgumentError(
        "the peer sent an address of a soft NIC of another version: run the same release on both "
        "workers");
  }
  if (((in[6] & kSealed) != 0) != !secret.empty()) {
    return absl::InvalidArgumentError(
        "one worker has a token and the other has none: set token_file alike on both");
  }
  SoftAddress address;
  address.sockets = in[5];
  address.tls = (in[6] & kTls) != 0;
  address.number = LoadLittle<uint32_t>(in + 8);
  memcpy(address.token.data(), in + 12, address.token.size());
  const absl::string_view sealed = bytes.substr(bytes.size() - behind);
  bytes.remove_suffix(behind);
  address.listener = std::string(bytes.substr(kAddressFixedBytes));
  if (secret.empty()) return address;
  Sealing sealing(secret, TextOf(address.token), kSealingName);
  sealing.BeginOpen(0, bytes);
  sealing.Add(sealed.data(), address.token.size(), address.token.data());
  if (!sealing.EndOpen(reinterpret_cast<const uint8_t*>(sealed.data()) + address.token.size())) {
    return absl::InvalidArgumentError(
        "the peer's address of a soft NIC was not made with this cluster's token: set token_file "
        "alike on both");
  }
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
  return hello->socket < hello->sockets && LoadLittle<uint32_t>(in + 20) == 0;
}

}  // namespace tryst
