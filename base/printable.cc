#include "base/printable.h"

#include <cstddef>
#include <cstdint>

namespace tryst {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

bool IsPrintable(char c) { return c >= 0x20 && c < 0x7f; }

void AppendEscaped(char c, std::string* out) {
  if (c == '\n') {
    *out += "\\n";
  } else if (c == '\t') {
    *out += "\\t";
  } else if (c == '\r') {
    *out += "\\r";
  } else {
    const auto byte = static_cast<uint8_t>(c);
    *out += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
  }
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (IsPrintable(c)) {
      out += c;
    } else {
      AppendEscaped(c, &out);
    }
  }
  return out;
}

std::string PrintableLines(absl::string_view text) {
  std::string out;
  for (;;) {
    const size_t end = text.find('\n');
    out += Printable(text.substr(0, end));
    if (end == absl::string_view::npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string PrintableJson(absl::string_view document) {
  std::string out;
  for (size_t i = 0; i < document.size(); ++i) {
    const auto byte = static_cast<uint8_t>(document[i]);
    // U+0080 to U+009f in UTF-8: terminals obey them like escape codes.
    const bool is_c1 =
        byte == 0xc2 && i + 1 < document.size() && static_cast<uint8_t>(document[i + 1]) < 0xa0;
    const uint8_t code = is_c1 ? static_cast<uint8_t>(document[i + 1]) : byte;
    if (is_c1 || (byte < 0x20 && byte != '\n') || byte == 0x7f) {
      out += {'\\', 'u', '0', '0', kHexDigits[code >> 4], kHexDigits[code & 15]};
      i += is_c1 ? 1 : 0;
    } else {
      out += document[i];
    }
  }
  return out;
}

}  // namespace tryst
