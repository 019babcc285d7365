#include "tests/attack/http2_wire.h"

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

std::string BigEndian(uint64_t value, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out += static_cast<char>((value >> shift) & 0xff);
  }
  return out;
}

std::string HpackString(absl::string_view text) {
  std::string out;
  size_t left = text.size();
  if (left < 127) {
    out += static_cast<char>(left);
    return absl::StrCat(out, text);
  }
  out += static_cast<char>(127);
  for (left -= 127; left >= 128; left /= 128) out += static_cast<char>(left % 128 + 128);
  out += static_cast<char>(left);
  return absl::StrCat(out, text);
}

}  // namespace

std::string Http2Frame(Http2 type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(payload.size(), 3), BigEndian(static_cast<uint8_t>(type), 1),
                      BigEndian(flags, 1), BigEndian(stream, 4), payload);
}

std::string Http2Header(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'), HpackString(name), HpackString(value));
}

std::string CallHeaders(absl::string_view method) {
  return absl::StrCat(
      "\x83\x86", Http2Header(":path", absl::StrCat("/tryst.rpc.TransportService/", method)),
      Http2Header(":authority", "x"), Http2Header("content-type", "application/grpc"),
      Http2Header("te", "trailers"));
}

std::string Http2Preface() {
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Http2Frame(Http2::kSettings, 0, 0, ""));
}

std::string MessageHead(bool compressed, size_t bytes) {
  return absl::StrCat(BigEndian(compressed, 1), BigEndian(bytes, 4));
}

}  // namespace tryst
