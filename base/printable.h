#ifndef TRYST_BASE_PRINTABLE_H_
#define TRYST_BASE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// What a peer said (a status, a key, a name), for a terminal or a log: one line of printable ASCII.
// Other bytes come as in C, "\n" or "\x1b": a line end could forge a line, and a terminal obeys
// escape codes.
std::string Printable(absl::string_view text);

// Like Printable(), but line ends stay: what a worker answers to `tryst explain` has several lines.
std::string PrintableLines(absl::string_view text);

// Like PrintableLines(), for a JSON document: characters of UTF-8 that no terminal obeys stay, too.
std::string PrintableJson(absl::string_view document);

}  // namespace tryst

#endif  // TRYST_BASE_PRINTABLE_H_
