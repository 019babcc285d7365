#include "channel/trace/json_text.h"

#include <cstdint>

#include "base/printable.h"

namespace tryst {
namespace {

// The number of bytes of the UTF-8 character at the front; 0: there is none.
size_t CharacterBytes(absl::string_view text) {
  const auto at = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  const size_t bytes = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (bytes == 0 || lead > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  // Rejects overlong forms, surrogates, and values beyond U+10FFFF.
  if (lead == 0xe0 && at(1) < 0xa0) return 0;
  if (lead == 0xed && at(1) > 0x9f) return 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) > 0x8f) return 0;
  return bytes;
}

}  // namespace

std::string JsonText(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const char first = text[0];
    if (bytes == 0) {
      out += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      out += '\\';
      out += first;
    } else if (first == '\n') {
      out += "\\u000a";
    } else {
      out += PrintableJson(text.substr(0, bytes));
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out + "\"";
}

}  // namespace tryst
