#ifndef TRYST_SERVER_SECURITY_LOOPBACK_H_
#define TRYST_SERVER_SECURITY_LOOPBACK_H_

#include "absl/strings/string_view.h"

namespace tryst {

// Whether only this host can reach `address`: "host", "host:port", "[v6]:port", "unix:...". Does
// not resolve names: of names only "localhost" counts.
bool IsLoopback(absl::string_view address);

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_LOOPBACK_H_
