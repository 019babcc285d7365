#ifndef TRYST_BASE_LOG_RECORD_H_
#define TRYST_BASE_LOG_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"

namespace tryst {

// How lines look on stderr. kJson: one object a line, with "unix_ms", "severity", "thread",
// "place", "text". In both formats one place in the code may write 20 lines in ten seconds. Further
// ones are counted, and the next line says how many were left out.
enum class LogFormat { kText, kJson };
void SetLogFormat(LogFormat format);

struct LoggedLine {
  int64_t unix_ms = 0;
  LogSeverity severity = LogSeverity::kInfo;
  std::string place;  // "server.cc:42"
  std::string text;
};
// The last 64 warnings and errors of the process, oldest first, whichever sink gets them.
std::vector<LoggedLine> RecentTrouble();

}  // namespace tryst

#endif  // TRYST_BASE_LOG_RECORD_H_
