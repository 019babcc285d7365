#include "base/log.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log_record.h"
#include "base/mutex.h"
#include "base/printable.h"

namespace tryst {
namespace {

constexpr size_t kMostRecent = 64;
constexpr size_t kSites = 512;
constexpr size_t kMostLineBytes = 3500;  // With what stands before it, less than PIPE_BUF.
constexpr int kLinesPerWindow = 20;
constexpr int64_t kWindowMs = 10'000;

const char* SeverityName(LogSeverity severity) {
  static constexpr const char* kNames[] = {"info", "warning", "error", "fatal"};
  return kNames[static_cast<size_t>(severity)];
}

std::string PlaceOf(const char* file, int line) {
  const char* base = strrchr(file, '/');
  return absl::StrCat(base != nullptr ? base + 1 : file, ":", line);
}

// JSON's escapes; a byte that is not ASCII may be anything and becomes '?'.
std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }
  return out + "\"";
}

// A peer chooses some of the text.
std::string PrintableLine(absl::string_view text) {
  return absl::StrCat(Printable(text.substr(0, kMostLineBytes)),
                      text.size() > kMostLineBytes ? "..." : "");
}

// Whether stderr takes a line now. A pipe that nobody reads must not block the thread that logs.
bool StderrTakesALine(LogSeverity severity) {
  pollfd out = {STDERR_FILENO, POLLOUT, 0};
  return poll(&out, 1, severity == LogSeverity::kFatal ? 1000 : 0) == 1;
}

// Keeps the last lines for RecentTrouble(), and counts lines of each place in the code.
class Record {
 public:
  void Keep(LoggedLine line) {
    MutexLock lock(&mu_);
    if (recent_.size() == kMostRecent) recent_.pop_front();
    recent_.push_back(std::move(line));
  }
  std::vector<LoggedLine> recent() {
    MutexLock lock(&mu_);
    return {recent_.begin(), recent_.end()};
  }
  // Whether a line of this place may be written now. If so, `*left_out` is how many lines of it
  // were suppressed before.
  bool MayWrite(const char* file, int line, int64_t now_ms, uint64_t* left_out) {
    MutexLock lock(&mu_);
    Site& site =
        sites_[(reinterpret_cast<uintptr_t>(file) / 8 * 31 + static_cast<size_t>(line)) % kSites];
    if (site.file != file || site.line != line) site = Site{file, line, now_ms, 0, 0};
    if (now_ms - site.since_ms >= kWindowMs || now_ms < site.since_ms) {
      site.since_ms = now_ms;
      site.written = 0;
    }
    if (site.written == kLinesPerWindow) {
      ++site.left_out;
      return false;
    }
    ++site.written;
    *left_out = std::exchange(site.left_out, 0);
    return true;
  }

 private:
  struct Site {
    const char* file = nullptr;
    int line = 0;
    int64_t since_ms = 0;
    int written = 0;
    uint64_t left_out = 0;
  };
  Mutex mu_;
  std::deque<LoggedLine> recent_ ABSL_GUARDED_BY(mu_);
  std::array<Site, kSites> sites_ ABSL_GUARDED_BY(mu_);
};

Record& record() {
  static Record& only = *new Record;  // Lines may be logged until the process ends.
  return only;
}

std::atomic<LogFormat> log_format{LogFormat::kText};

void WriteToStderr(LogSeverity severity, const char* file, int line, absl::string_view text) {
  const absl::Time now = absl::Now();
  uint64_t left_out = 0;
  if (!StderrTakesALine(severity)) return;
  if (severity != LogSeverity::kFatal &&
      !record().MayWrite(file, line, absl::ToUnixMillis(now), &left_out)) {
    return;
  }
  const std::string more =
      left_out == 0 ? "" : absl::StrCat(" (", left_out, " like it were left out)");
  std::string out;
  if (log_format.load() == LogFormat::kJson) {
    absl::StrAppend(&out, "{\"unix_ms\":", absl::ToUnixMillis(now), ",\"severity\":\"",
                    SeverityName(severity), "\",\"thread\":", syscall(SYS_gettid),
                    ",\"place\":", JsonString(PlaceOf(file, line)),
                    ",\"text\":", JsonString(absl::StrCat(PrintableLine(text), more)), "}\n");
  } else {
    absl::StrAppend(&out, absl::string_view("IWEF").substr(static_cast<size_t>(severity), 1),
                    absl::FormatTime("%m%d %H:%M:%E6S", now, absl::LocalTimeZone()), " ",
                    syscall(SYS_gettid), " ", PlaceOf(file, line), "] ", PrintableLine(text), more,
                    "\n");
  }
  // One write, so that lines of several threads do not mix. There is nowhere to
  // report that stderr itself fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, out.data(), out.size());
}

std::atomic<LogSink> log_sink{&WriteToStderr};

}  // namespace

void SetLogSink(LogSink sink) { log_sink.store(sink != nullptr ? sink : &WriteToStderr); }

void SetLogFormat(LogFormat format) { log_format.store(format); }

std::vector<LoggedLine> RecentTrouble() { return record().recent(); }

LogLine::~LogLine() {
  const std::string text = text_.str();
  if (severity_ >= LogSeverity::kWarning) {
    record().Keep({absl::ToUnixMillis(absl::Now()), severity_, PlaceOf(file_, line_), text});
  }
  log_sink.load()(severity_, file_, line_, text);
  if (severity_ == LogSeverity::kFatal) abort();
}

}  // namespace tryst
