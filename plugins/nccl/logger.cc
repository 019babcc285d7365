#include "plugins/nccl/logger.h"

#include <atomic>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst::nccl {
namespace {

std::atomic<LogFunction> log_function{nullptr};

void Say(int level, const char* file, int line, const std::string& text) {
  const LogFunction log = log_function.load();
  if (log != nullptr) {
    log(level, kLogInit | kLogNet, file, line, "NET/Tryst : %s", text.c_str());
  } else if (level == kLogWarning) {
    fprintf(stderr, "NET/Tryst : %s\n", text.c_str());
  }
}

// Gets the log lines of the NIC and of base/.
void Sink(LogSeverity severity, const char* file, int line, absl::string_view text) {
  const bool bad = severity == LogSeverity::kError || severity == LogSeverity::kFatal;
  Say(bad ? kLogWarning : kLogInformation, file, line, std::string(text));
}

}  // namespace

void SetLogger(LogFunction log) {
  if (log == nullptr) return;
  log_function.store(log);
  SetLogSink(&Sink);
}

void LogWarning(const std::string& line) { Say(kLogWarning, __FILE__, __LINE__, line); }
void LogDecision(const std::string& line) { Say(kLogInformation, __FILE__, __LINE__, line); }

Result ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kAborted:
      return kRemoteError;
    case absl::StatusCode::kInvalidArgument:
      return kInvalidArgument;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return kInvalidUsage;
    case absl::StatusCode::kInternal:
      return kInternalError;
    default:
      return kSystemError;
  }
}

Result Report(const absl::Status& status) {
  if (!status.ok()) LogWarning(std::string(status.message()));
  return ResultOf(status);
}

}  // namespace tryst::nccl
