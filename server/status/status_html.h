#ifndef TRYST_SERVER_STATUS_STATUS_HTML_H_
#define TRYST_SERVER_STATUS_STATUS_HTML_H_

#include "absl/strings/string_view.h"

namespace tryst {

// The page for people: it asks /paths.json and /waiting.json every two seconds and draws the
// answers. It loads nothing from elsewhere.
absl::string_view StatusHtml();

}  // namespace tryst

#endif  // TRYST_SERVER_STATUS_STATUS_HTML_H_
