#include "server/page/job_page.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "server/cli/ask_workers.h"
#include "server/page/job_watch.h"
#include "server/status_page.h"
#include "server/stop_signals.h"

namespace tryst {
namespace {

constexpr size_t kMostRecordedBytes = 256 << 20;

// Reads the file that --out wrote: the documents that the page showed, one a line.
absl::StatusOr<std::vector<std::string>> ReadRecording(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  std::string line;
  size_t bytes = 0;
  while (std::getline(in, line)) {
    bytes += line.size();
    if (bytes > kMostRecordedBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is too large to be played back"));
    }
    lines.push_back(std::exchange(line, {}));
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is neither a worker nor a recording of tryst page --out=FILE"));
  }
  return lines;
}

int Serve(const CommandLine& line, StatusPageOptions options, StatusPage::PageFn answer,
          const std::function<void()>& every) {
  if (options.listen.empty()) options.listen = "127.0.0.1:0";
  const auto page = StatusPage::Start(options, nullptr, std::move(answer));
  if (!page.ok()) return Fail(page.status());
  std::printf("the job's page is at %s://%s/\n", options.speaks_tls() ? "https" : "http",
              (*page)->address().c_str());
  std::fflush(stdout);
  while (!StopSignalWithin(line.every)) every();
  return kExitDone;
}

int PlayBack(const CommandLine& line, const StatusPageOptions& options, const std::string& path) {
  const auto lines = ReadRecording(path);
  if (!lines.ok()) return FailUsage(lines.status());
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  const int64_t each_ns = std::max<int64_t>(1, absl::ToInt64Nanoseconds(line.every));
  return Serve(
      line, options,
      [&](absl::string_view url, std::string* type, std::string* body) {
        *type = "application/json";
        if (url == "/job.json") {
          *body =
              (*lines)[static_cast<size_t>((clock.NowNs() - start_ns) / each_ns) % lines->size()];
          return true;
        }
        *type = "text/html; charset=utf-8";
        if (url == "/") *body = std::string(JobHtml());
        return url == "/";
      },
      [] {});
}

int Watch(const CommandLine& line, const StatusPageOptions& options, Asked asked) {
  const SteadyClock clock;
  JobWatch watch(asked.client.get(), line.every, &clock);
  std::ofstream out;
  if (!line.out.empty()) out.open(line.out);
  return Serve(
      line, options,
      [&watch](absl::string_view url, std::string* type, std::string* body) {
        *type = "application/json";
        if (url == "/job.json") {
          *body = watch.Json();
        } else if (absl::ConsumePrefix(&url, "/worker")) {
          *body = watch.WorkerJson(std::string(url));
        } else if (absl::ConsumePrefix(&url, "/key/")) {
          *type = "text/plain; charset=utf-8";
          *body = watch.KeyText(std::string(url));
        } else {
          *type = "text/html; charset=utf-8";
          if (url == "/") *body = std::string(JobHtml());
          return url == "/";
        }
        return true;
      },
      [&] {
        if (out.is_open()) out << watch.Json() << std::flush;
      });
}

}  // namespace

int RunPage(const CommandLine& line) {
  BlockStopSignals();
  const absl::StatusOr<StatusPageOptions> read = ReadStatusPageOptions(line.config);
  if (!read.ok()) return FailUsage(read.status());
  if (line.words.size() == 1 && !IsWorkerName(line.words[0])) {
    return PlayBack(line, *read, line.words[0]);
  }
  auto asked = WhomToAsk(line, false);
  if (!asked.ok()) return FailUsage(asked.status());
  return Watch(line, *read, *std::move(asked));
}

}  // namespace tryst
