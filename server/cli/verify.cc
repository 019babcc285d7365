#include "server/cli/verify.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "channel/ops/verify_traces.h"
#include "server/cli/ask_workers.h"
#include "server/cli/trace_file.h"

namespace tryst {

int RunVerify(const CommandLine& line) {
  std::vector<TraceDump> dumps;
  for (size_t i = 0; i < line.words.size(); ++i) {
    const std::string& path = line.words[i];
    std::ifstream file(path);
    if (!file) return Fail(absl::NotFoundError(absl::StrCat("cannot read ", path)));
    absl::StatusOr<std::vector<TraceDump>> read = ReadTraceFile(&file);
    if (!read.ok()) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(
          path, " is not a file that `tryst trace --out` wrote: ", read.status().message())));
    }
    for (TraceDump& dump : *read) {
      dump.clock = static_cast<int>(i);
      dumps.push_back(std::move(dump));
    }
  }
  const TraceVerdict verdict = VerifyTraces(dumps);
  std::string text;
  for (const TraceBreach& breach : verdict.breaches) {
    absl::StrAppendFormat(&text, "%s, at %.3f ms: %s\n", line.words[breach.clock],
                          static_cast<double>(breach.at_ns) / 1e6, breach.what);
  }
  absl::StrAppend(&text, verdict.operations, " operations: ", verdict.pairs, " with both ends, ",
                  verdict.alone, " with one, ", verdict.under_way, " under way; ",
                  verdict.breaches.size(), " breaches\n");
  Show(text, false);
  if (!verdict.breaches.empty()) return kExitFailed;
  return verdict.operations == 0 ? kExitNothingFound : kExitDone;
}

}  // namespace tryst
