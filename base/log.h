#ifndef TRYST_BASE_LOG_H_
#define TRYST_BASE_LOG_H_

#include <sstream>

#include "absl/strings/string_view.h"

namespace tryst {

enum class LogSeverity { kInfo, kWarning, kError, kFatal };

// Receives every finished line, from any thread, possibly at once. The text has no
// newline and lasts only for the call.
using LogSink = void (*)(LogSeverity severity, const char* file, int line, absl::string_view text);

// Sends lines to `sink` instead of stderr; null restores stderr. The one setting of
// the whole process, because a log line must find its way out of any code at all.
void SetLogSink(LogSink sink);

// One line in the making; it leaves when the statement ends. A fatal line aborts.
class LogLine {
 public:
  LogLine(LogSeverity severity, const char* file, int line)
      : severity_(severity), file_(file), line_(line) {}
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return text_; }

 private:
  const LogSeverity severity_;
  const char* const file_;
  const int line_;
  std::ostringstream text_;
};

namespace log_internal {
// Gives `condition ? void : stream` one type; binds weaker than <<.
struct Voidify {
  void operator&(std::ostream&) const {}
};
}  // namespace log_internal

}  // namespace tryst

#define TRYST_LOG(severity) \
  ::tryst::LogLine(::tryst::LogSeverity::k##severity, __FILE__, __LINE__).stream()

// Only for what our own code can falsify: never a peer, a NIC, a user, the environment.
// NOLINTBEGIN(bugprone-macro-parentheses): what the caller streams follows.
#define TRYST_CHECK(condition) \
  (condition)                  \
      ? static_cast<void>(0)   \
      : ::tryst::log_internal::Voidify() & TRYST_LOG(Fatal) << "CHECK failed: " #condition " "
// NOLINTEND(bugprone-macro-parentheses)

#ifdef NDEBUG
#define TRYST_DCHECK(condition) \
  while (false) TRYST_CHECK(condition)
#else
#define TRYST_DCHECK(condition) TRYST_CHECK(condition)
#endif

#endif  // TRYST_BASE_LOG_H_
