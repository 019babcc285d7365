#ifndef TRYST_SERVER_CLI_TRACE_FILE_H_
#define TRYST_SERVER_CLI_TRACE_FILE_H_

#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "channel/trace/trace_dump.h"

namespace tryst {

// The dumps that a Chrome trace was made of (ChromeTrace() in channel/trace/trace_dump.h), all by
// its reader's clock, from its earliest event on. It reads line by line, so a trace that another
// program has written anew is refused: kInvalidArgument, and names the line.
absl::StatusOr<std::vector<TraceDump>> ReadTraceFile(std::istream* in);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_TRACE_FILE_H_
