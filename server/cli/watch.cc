#include "server/cli/watch.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"
#include "channel/trace/trace_dump.h"
#include "server/cli/ask_workers.h"

namespace tryst {
namespace {

// Returns {"WORKER":DOCUMENT, ...}; a worker that does not answer has {"error":"..."}.
std::string JsonByWorker(const std::vector<std::pair<std::string, std::string>>& documents) {
  std::string out = "{";
  for (const auto& [worker, document] : documents) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", JsonText(worker), ":", document);
  }
  return out + "}\n";
}

}  // namespace

int RunExplain(const CommandLine& line) {
  CommandLine about = line;
  const std::string peer = line.words.size() > 1 ? line.words[1] : "";
  about.words.resize(1);
  auto asked = WhomToAsk(about, false);
  if (!asked.ok()) return FailUsage(asked.status());
  return Print(asked->client->calls()->Explain(line.words[0], peer, line.json, line.timeout),
               line.json);
}

int RunWaiting(const CommandLine& line) {
  auto asked = WhomToAsk(line, false);
  if (!asked.ok()) return FailUsage(asked.status());
  int exit = kExitDone;
  std::vector<std::pair<std::string, std::string>> documents;
  for (const std::string& worker : asked->workers) {
    const auto waiting =
        asked->client->calls()->DumpWaiting(worker, line.step.value_or(0), line.json, line.timeout);
    if (!waiting.ok()) exit = Fail(waiting.status());
    const std::string error =
        waiting.ok() ? "" : absl::StrCat("{\"error\":", JsonText(waiting.status().message()), "}");
    documents.emplace_back(worker, waiting.ok() ? *waiting : error);
    if (line.json || !waiting.ok()) continue;
    if (asked->workers.size() > 1) Show(absl::StrCat(worker, ":\n"), false);
    Show(*waiting, false);
  }
  if (line.json) Show(JsonByWorker(documents), true);
  return exit;
}

int RunTrace(const CommandLine& line) {
  auto asked = WhomToAsk(line, true);
  if (!asked.ok()) return FailUsage(asked.status());
  TraceFilter filter;
  filter.step = line.step.value_or(-1);
  if (asked->rest.size() > 1) {
    return FailUsage(absl::InvalidArgumentError(
        "trace takes one TEXT at most: put a key with blanks in quotes"));
  }
  if (!asked->rest.empty()) filter.key_part = asked->rest[0];
  std::vector<TraceDump> dumps;
  int exit = kExitDone;
  size_t operations = 0;
  const bool show_progress = isatty(STDERR_FILENO) != 0;
  for (size_t i = 0; i < asked->workers.size(); ++i) {
    const std::string& worker = asked->workers[i];
    const absl::Duration timeout = asked->Patience(i, line.timeout);
    if (show_progress) std::fprintf(stderr, "\r\033[Kasking %s", Printable(worker).c_str());
    auto clock = asked->client->calls()->CompareClocks(worker, timeout);
    auto dump = clock.ok() ? asked->client->calls()->TraceKey(worker, filter, timeout)
                           : absl::StatusOr<TraceDump>(clock.status());
    if (show_progress) std::fputs("\r\033[K", stderr);
    if (!dump.ok()) {
      exit = Fail(dump.status());  // The others' traces may suffice.
      continue;
    }
    dump->ahead_ns = clock->ahead_ns;
    dump->ahead_error_ns = clock->error_ns;
    operations += dump->records.size();
    dumps.push_back(*std::move(dump));
  }
  if (!line.out.empty()) {
    std::ofstream file(line.out);
    file << ChromeTrace(dumps);
    file.close();
    if (!file)
      return Fail(absl::UnavailableError(
          absl::StrCat("cannot write ", line.out, ": is there room, and may you write there?")));
  }
  if (line.json) {
    Show(ChromeTrace(dumps), true);
  } else {
    Show(TraceText(dumps), false);
    for (const TraceDump& dump : dumps) {
      std::printf(
          "%s: %zu shown, clock known within %.3f ms; of %llu ended %llu are kept, %llu "
          "were overwritten, %llu passed over\n",
          Printable(dump.worker).c_str(), dump.records.size(),
          static_cast<double>(dump.ahead_error_ns) / 1e6,
          static_cast<unsigned long long>(dump.counts.ended),
          static_cast<unsigned long long>(dump.counts.kept),
          static_cast<unsigned long long>(dump.counts.overwritten),
          static_cast<unsigned long long>(dump.counts.passed_over));
    }
  }
  return exit == kExitDone && operations == 0 ? kExitNothingFound : exit;
}

}  // namespace tryst
