#ifndef TRYST_CHANNEL_TRACE_JSON_TEXT_H_
#define TRYST_CHANNEL_TRACE_JSON_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// `text` as a JSON string, with its quotes. What is not UTF-8 becomes U+FFFD: keys and
// messages come from peers, and a document with one bad byte is no JSON at all.
std::string JsonText(absl::string_view text);

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_JSON_TEXT_H_
