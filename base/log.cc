#include "base/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tryst {
namespace {

void WriteToStderr(LogSeverity severity, const char* file, int line, absl::string_view text) {
  const char* base = strrchr(file, '/');
  std::string out;
  absl::StrAppend(&out, absl::string_view("IWEF").substr(static_cast<size_t>(severity), 1),
                  absl::FormatTime("%m%d %H:%M:%E6S", absl::Now(), absl::LocalTimeZone()), " ",
                  syscall(SYS_gettid), " ", base != nullptr ? base + 1 : file, ":", line, "] ",
                  text, "\n");
  // One write, so that lines of several threads do not mix. There is nowhere to
  // report that stderr itself fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, out.data(), out.size());
}

std::atomic<LogSink> log_sink{&WriteToStderr};

}  // namespace

void SetLogSink(LogSink sink) { log_sink.store(sink != nullptr ? sink : &WriteToStderr); }

LogLine::~LogLine() {
  const std::string text = text_.str();
  log_sink.load()(severity_, file_, line_, text);
  if (severity_ == LogSeverity::kFatal) abort();
}

}  // namespace tryst
