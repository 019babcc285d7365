#ifndef TRYST_SERVER_SECURITY_LOOPBACK_H_
#define TRYST_SERVER_SECURITY_LOOPBACK_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// Whether only this host can reach `address`: "host", "host:port", "[v6]:port", "unix:...". Does
// not resolve names: of names only "localhost" counts.
bool IsLoopback(absl::string_view address);

// The host of "host:port"; without a port the whole text.
std::string HostOf(const std::string& address);

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_LOOPBACK_H_
