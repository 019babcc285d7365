#ifndef TRYST_BASE_READ_FILE_H_
#define TRYST_BASE_READ_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tryst {

// The content of a file that a setting names. A path may lead to something without an end
// (/dev/zero), or to a pipe that nobody writes to, and whoever reads it must still be able to stop:
// so it reads `most_bytes` at most, and waits for `most_wait` at most.
// kInvalidArgument: the file cannot be read, is larger, or had not ended by then.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes,
                                     absl::Duration most_wait = absl::Seconds(2));

}  // namespace tryst

#endif  // TRYST_BASE_READ_FILE_H_
