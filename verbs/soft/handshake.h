#ifndef TRYST_VERBS_SOFT_HANDSHAKE_H_
#define TRYST_VERBS_SOFT_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// 128 random bits that open one queue pair once.
using Token = std::array<uint8_t, 16>;

// In a time that does not depend on the bytes.
bool TokensEqual(const Token& a, const Token& b);

// QueuePair::LocalAddress(), decoded.
struct SoftAddress {
  Token token = {};
  uint32_t number = 0;
  uint8_t sockets = 1;
  bool tls = false;
  std::string listener;  // As SocketAddress::Parse() takes it.
};
std::string EncodeSoftAddress(const SoftAddress& address);
absl::StatusOr<SoftAddress> DecodeSoftAddress(absl::string_view bytes);

// The first bytes on a socket, each way: the dialler's, which carries the token of the
// queue pair it wants, and the answer, which carries the dialler's own. Each side so
// proves that it holds the other's address.
struct SoftHello {
  Token token = {};        // The receiving side's.
  uint32_t to_number = 0;  // Queue pair.
  uint32_t from_number = 0;
  uint8_t socket = 0;  // Which of the queue pair's.
  uint8_t sockets = 1;
  uint32_t receives = 0;  // As in a FrameHeader.
};
inline constexpr size_t kHelloBytes = 40;
void EncodeHello(const SoftHello& hello, uint8_t out[kHelloBytes]);
[[nodiscard]] bool DecodeHello(const uint8_t in[kHelloBytes], SoftHello* hello);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_HANDSHAKE_H_
