#include "examples/parameter_server/progress.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/status/insight.h"

namespace tryst {

std::string ProgressLine(const Progress& progress) {
  return absl::StrCat("@progress ", progress.examples, " ", progress.bytes, " ", progress.loss, " ",
                      progress.held_out);
}

bool ParseProgress(const std::string& line, Progress* progress) {
  return std::sscanf(line.c_str(), "@progress %ld %ld %lf %lf", &progress->examples,
                     &progress->bytes, &progress->loss, &progress->held_out) == 4;
}

std::string SeedLine(const std::string& seed) { return absl::StrCat("@seed ", seed); }

bool ParseSeed(const std::string& line, std::string* seed) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "@seed ")) return false;
  *seed = std::string(rest);
  return true;
}

PathReport ReportPath(Server* server, const std::string& peer) {
  PathReport report;
  report.peer = ShortName(peer);
  std::vector<std::string> reasons;
  std::string trouble;
  for (const PathView& view : server->insight()->Paths(peer, &trouble)) {
    if (view.role != TraceRole::kFetch) continue;
    if (view.in_use) {
      report.path = view.path;
      // "connected (same host, ...)": what proved that the path works.
      absl::string_view proof = view.state;
      if (absl::ConsumePrefix(&proof, "connected (") && absl::ConsumeSuffix(&proof, ")")) {
        reasons.emplace_back(proof);
      }
      if (!view.note.empty()) reasons.push_back(view.note);
    } else if (view.state != "not tried" && !view.why.empty()) {
      reasons.push_back(view.why);
    }
  }
  report.why = absl::StrJoin(reasons, "; ");
  return report;
}

std::string PathLine(const PathReport& report) {
  return absl::StrCat("@path ", report.peer, "\t", report.path, "\t", report.why);
}

bool ParsePath(const std::string& line, PathReport* report) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "@path ")) return false;
  const std::vector<std::string> parts = absl::StrSplit(rest, absl::MaxSplits('\t', 2));
  if (parts.size() != 3) return false;
  *report = {parts[0], parts[1], parts[2]};
  return true;
}

std::string ShortName(const std::string& worker) {
  const std::vector<std::string> parts = absl::StrSplit(worker, absl::ByAnyChar(":/"));
  // "", "job", JOB, "replica", "0", "task", TASK.
  return parts.size() == 7 ? absl::StrCat(parts[2], " ", parts[6]) : worker;
}

}  // namespace tryst
