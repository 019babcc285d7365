#ifndef TRYST_PLUGINS_NCCL_LOGGER_H_
#define TRYST_PLUGINS_NCCL_LOGGER_H_

#include <string>

#include "absl/status/status.h"
#include "plugins/nccl/abi.h"

namespace tryst::nccl {

// Sends this library's lines where NCCL's go (NCCL_DEBUG, NCCL_DEBUG_FILE). Any thread.
void SetLogger(LogFunction log);

void LogWarning(const std::string& line);   // NCCL_DEBUG=WARN shows it.
void LogDecision(const std::string& line);  // NCCL_DEBUG=INFO shows it, under NET.

// What NCCL is told of `status`: whose fault it is decides what NCCL prints.
Result ResultOf(const absl::Status& status);
// The same, and says why.
Result Report(const absl::Status& status);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_LOGGER_H_
