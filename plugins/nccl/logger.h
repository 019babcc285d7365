#ifndef TRYST_PLUGINS_NCCL_LOGGER_H_
#define TRYST_PLUGINS_NCCL_LOGGER_H_

#include <string>

#include "absl/status/status.h"
#include "plugins/nccl/abi.h"

namespace tryst::nccl {

// Sends this library's log lines where NCCL's go (NCCL_DEBUG, NCCL_DEBUG_FILE). Thread-safe.
void SetLogger(LogFunction log);

void LogWarning(const std::string& line);   // NCCL_DEBUG=WARN shows it.
void LogDecision(const std::string& line);  // NCCL_DEBUG=INFO shows it, under NET.

// The result for NCCL. It says whose fault the failure is, which decides what NCCL prints.
Result ResultOf(const absl::Status& status);
// Like ResultOf(), and logs the status.
Result Report(const absl::Status& status);

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_LOGGER_H_
