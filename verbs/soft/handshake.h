#ifndef TRYST_VERBS_SOFT_HANDSHAKE_H_
#define TRYST_VERBS_SOFT_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// 128 random bits, which open one queue pair once.
using Token = std::array<uint8_t, 16>;

// Takes the same time whatever the bytes.
bool TokensEqual(const Token& a, const Token& b);

// QueuePair::LocalAddress(), decoded.
struct SoftAddress {
  Token token = {};
  uint32_t number = 0;
  uint8_t sockets = 1;
  bool tls = false;
  std::string listener;  // In the form of SocketAddress::ParseAll().
};
inline constexpr size_t kMaxListenerBytes = 200;
std::string EncodeSoftAddress(const SoftAddress& address);
// The token is encrypted, and all proved, under a key of the `secret` that both sides share and of
// `salt`, which is random and used once.
std::string SealSoftAddress(const SoftAddress& address, absl::string_view secret,
                            const Token& salt);
// With a secret, only an address that was sealed with it is taken.
absl::StatusOr<SoftAddress> DecodeSoftAddress(absl::string_view bytes,
                                              absl::string_view secret = "");

// The first bytes on a socket, in each direction. The dialler's contain the token of the queue pair
// that it wants; the answer contains the dialler's own token. So each side proves that it has the
// other's address.
struct SoftHello {
  Token token = {};        // The receiving side's.
  uint32_t to_number = 0;  // The number of the queue pair.
  uint32_t from_number = 0;
  uint8_t socket = 0;  // Its index among the queue pair's sockets.
  uint8_t sockets = 1;
  uint32_t receives = 0;  // As in a FrameHeader.
};
inline constexpr size_t kHelloBytes = 40;
void EncodeHello(const SoftHello& hello, uint8_t out[kHelloBytes]);
[[nodiscard]] bool DecodeHello(const uint8_t in[kHelloBytes], SoftHello* hello);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_HANDSHAKE_H_
