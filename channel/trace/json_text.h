#ifndef TRYST_CHANNEL_TRACE_JSON_TEXT_H_
#define TRYST_CHANNEL_TRACE_JSON_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// `text` as a JSON string, with quotes. Bytes that are not UTF-8 become U+FFFD: keys and messages
// come from peers, and one bad byte would make the whole document invalid.
std::string JsonText(absl::string_view text);

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_JSON_TEXT_H_
