#include "server/page/job_page.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "server/cli/ask_workers.h"
#include "server/page/job_watch.h"
#include "server/process/stop_signals.h"
#include "server/status/status_page.h"

namespace tryst {
namespace {

constexpr size_t kMostRecordedBytes = 256 << 20;

// Whether it is a document of JobDocument's. Its lists are not looked into: the page shows them as
// text.
bool IsDocument(const std::string& line) {
  google::protobuf::Struct document;
  if (!google::protobuf::util::JsonStringToMessage(line, &document).ok()) return false;
  constexpr const char* kLists[] = {"names", "workers", "edges", "steps", "changes"};
  return std::all_of(std::begin(kLists), std::end(kLists), [&](const char* name) {
    const auto field = document.fields().find(name);
    return field != document.fields().end() && field->second.has_list_value();
  });
}

// Reads the file that --out wrote: the documents that the page showed, one a line.
absl::StatusOr<std::vector<std::string>> ReadRecording(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMostRecordedBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path,
        "' is neither a worker nor a recording that can be read: ", text.status().message()));
  }
  std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  // A recorder that was killed leaves the beginning of a document behind.
  if (!lines.empty() && !absl::EndsWith(*text, "\n")) lines.pop_back();
  const bool is_recording = !lines.empty() && std::all_of(lines.begin(), lines.end(), IsDocument);
  if (is_recording) return lines;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", path, "' is neither a worker nor a recording that tryst page --out=FILE wrote"));
}

// Serves until a stop signal comes or `every` fails.
int Serve(const CommandLine& line, StatusPageOptions options, StatusPage::PageFn answer,
          const std::function<absl::Status()>& every) {
  if (options.listen.empty()) options.listen = "127.0.0.1:0";
  const auto page = StatusPage::Start(options, nullptr, std::move(answer));
  if (!page.ok()) return Fail(page.status());
  std::printf("the job's page is at %s://%s/\n", options.speaks_tls() ? "https" : "http",
              (*page)->address().c_str());
  std::fflush(stdout);
  while (!StopSignalWithin(line.every)) {
    const absl::Status status = every();
    if (!status.ok()) return Fail(status);
  }
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
      [] { return absl::OkStatus(); });
}

int Watch(const CommandLine& line, const StatusPageOptions& options, Asked asked) {
  std::ofstream out;
  const auto written = [&]() -> absl::Status {
    if (out.good()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot write ", line.out, ": is there room, and may you write there?"));
  };
  if (!line.out.empty()) {
    out.open(line.out);
    const absl::Status opened = written();
    if (!opened.ok()) return Fail(opened);
  }
  const SteadyClock clock;
  JobWatch watch(asked.client.get(), line.every, &clock);
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
        return written();
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
