#ifndef TRYST_TESTS_ATTACK_HTTP2_WIRE_H_
#define TRYST_TESTS_ATTACK_HTTP2_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// The frames of HTTP/2 that attackers write by hand, by their numbers in RFC 9113.
enum class Http2 : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr size_t kHttp2HeadBytes = 9;
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

std::string Http2Frame(Http2 type, uint8_t flags, uint32_t stream, absl::string_view payload);
// A header that no table has, in clear text.
std::string Http2Header(absl::string_view name, absl::string_view value);
// Those of a call of that method of TransportService.
std::string CallHeaders(absl::string_view method);
// What a connection begins with.
std::string Http2Preface();
// What stands before a message of so many bytes.
constexpr size_t kMessageHeadBytes = 5;
std::string MessageHead(bool compressed, size_t bytes);

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_HTTP2_WIRE_H_
