#include <google/protobuf/struct.pb.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"
#include "server/cli/ask_workers.h"
#include "server/cli/watch.h"

// `tryst top`: what every path of some workers carried between two queries.
namespace tryst {
namespace {

using google::protobuf::Struct;

struct PathLook {
  double done = 0;
  double failed = 0;
  double bytes = 0;
  std::map<std::string, double> waited_ms;
};

struct WorkerQuery {
  std::string incarnation;
  double steady_s = 0;
  std::map<std::string, PathLook> paths;  // By role, peer and path.
};

struct Row {
  std::string worker, role, peer, path, health, state;
  bool in_use = false;
  double operations_per_s = 0;
  double megabytes_per_s = 0;
  double failed = 0;  // The total, not a rate.
  double under_way = 0;
  double p99_ms = 0;
  std::string mostly;  // The reason for most of the waiting since the last query.
};

class Looker {
 public:
  // The rows of one worker, with rates since the last query. kUnavailable: it does not answer.
  absl::StatusOr<std::vector<Row>> Look(PeerCalls* calls, const std::string& worker,
                                        absl::Duration timeout) {
    const absl::StatusOr<Struct> document = ExplainedBy(calls, worker, timeout);
    if (!document.ok()) return document.status();
    WorkerQuery& look = looks_[worker];
    const WorkerQuery before = std::exchange(look, {});
    look.incarnation = TextIn(*document, "incarnation");
    look.steady_s = NumberIn(*document, "steady_ns") / 1e9;
    // It is the first query, or the worker has restarted.
    const bool same = before.steady_s > 0 && before.incarnation == look.incarnation;
    const double past_s = same ? look.steady_s - before.steady_s : 0;
    std::vector<Row> rows;
    const auto paths = document->fields().find("paths");
    if (paths == document->fields().end()) return rows;
    for (const auto& value : paths->second.list_value().values()) {
      rows.push_back(RowOf(worker, value.struct_value(), before.paths, past_s, &look.paths));
    }
    return rows;
  }

 private:
  using Paths = decltype(WorkerQuery::paths);

  // `past_s` is the time since the last query; 0: this incarnation was not asked before.
  static Row RowOf(const std::string& worker, const Struct& path, const Paths& all_before,
                   double past_s, Paths* all_now) {
    Row row;
    row.worker = worker;
    row.role = TextIn(path, "role");
    row.peer = TextIn(path, "peer");
    row.path = TextIn(path, "path");
    row.health = TextIn(path, "health");
    row.state = TextIn(path, "state");
    row.in_use = path.fields().count("in_use") > 0 && path.fields().at("in_use").bool_value();
    row.under_way = NumberIn(path, "under_way");
    row.p99_ms = NumberIn(path, "p99_ms");
    row.failed = NumberIn(path, "failed");
    PathLook now{NumberIn(path, "done"), row.failed, NumberIn(path, "bytes"), {}};
    const auto waited = path.fields().find("waited_ms");
    if (waited != path.fields().end()) {
      for (const auto& [what, ms] : waited->second.struct_value().fields()) {
        now.waited_ms[what] = ms.number_value();
      }
    }
    const std::string id = absl::StrCat(row.role, " ", row.peer, " ", row.path);
    (*all_now)[id] = now;
    const auto last = all_before.find(id);
    const PathLook before = last == all_before.end() ? PathLook() : last->second;
    if (past_s <= 0 || now.done < before.done) return row;
    row.operations_per_s = (now.done - before.done) / past_s;
    row.megabytes_per_s = (now.bytes - before.bytes) / past_s / 1e6;
    double most_ms = 0;
    for (const auto& [what, ms] : now.waited_ms) {
      const auto had = before.waited_ms.find(what);
      const double more_ms = ms - (had == before.waited_ms.end() ? 0 : had->second);
      if (more_ms > most_ms) row.mostly = Printable(what);
      most_ms = std::max(most_ms, more_ms);
    }
    return row;
  }

  std::map<std::string, WorkerQuery> looks_;
};

// Three digits, without an exponent.
std::string Figure(double value) {
  return value >= 99.95 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.3g", value);
}

std::string Table(const std::vector<Row>& rows, bool colours) {
  std::string out = absl::StrFormat("%-6s %-30s %-30s %-10s %9s %9s %6s %6s %9s  %s\n", "",
                                    "WORKER", "PEER", "PATH", "OPS/S", "MB/S", "NOW", "FAILED",
                                    "P99 MS", "WAITS MOSTLY FOR; STATE");
  for (const Row& row : rows) {
    if (!row.in_use && row.state == "not tried") continue;
    const bool fine = row.in_use && row.health != "failing";
    absl::StrAppendFormat(&out, "%-6s %-30s %-30s %-10s %9.0f %9.1f %6.0f %6.0f %9s  %s; %s%s%s\n",
                          row.role, row.worker, row.peer, row.path, row.operations_per_s,
                          row.megabytes_per_s, row.under_way, row.failed, Figure(row.p99_ms),
                          row.mostly.empty() ? "-" : row.mostly, colours && !fine ? "\033[33m" : "",
                          row.state, colours && !fine ? "\033[0m" : "");
  }
  return out;
}

std::string Json(const std::vector<Row>& rows, const std::vector<absl::Status>& failures) {
  std::string out = "{\"paths\":[";
  const char* comma = "";
  for (const Row& row : rows) {
    absl::StrAppendFormat(
        &out,
        "%s{\"worker\":%s,\"role\":%s,\"peer\":%s,\"path\":%s,\"health\":%s,\"state\":%s,"
        "\"in_use\":%s,"
        "\"operations_per_s\":%.3f,\"megabytes_per_s\":%.3f,\"under_way\":%.0f,\"failed\":%.0f,"
        "\"p99_ms\":%.4g,\"waits_mostly_for\":%s}",
        comma, JsonText(row.worker), JsonText(row.role), JsonText(row.peer), JsonText(row.path),
        JsonText(row.health), JsonText(row.state), row.in_use ? "true" : "false",
        row.operations_per_s, row.megabytes_per_s, row.under_way, row.failed, row.p99_ms,
        JsonText(row.mostly));
    comma = ",";
  }
  out += "],\"errors\":[";
  comma = "";
  for (const absl::Status& failure : failures) {
    absl::StrAppend(&out, comma, JsonText(failure.ToString()));
    comma = ",";
  }
  return out + "]}\n";
}

}  // namespace

int RunTop(const CommandLine& line) {
  auto asked = WhomToAsk(line, line.words.empty());  // Without names: all members.
  if (!asked.ok()) return FailUsage(asked.status());
  const bool terminal = isatty(STDOUT_FILENO) != 0 && !line.json;
  const bool colours = terminal && getenv("NO_COLOR") == nullptr;
  Looker looker;
  int exit = kExitDone;
  for (int64_t look = 0; line.count == 0 || look < line.count; ++look) {
    if (look > 0) absl::SleepFor(line.every);
    std::vector<Row> rows;
    std::vector<absl::Status> failures;
    for (const std::string& worker : asked->workers) {
      auto its = looker.Look(asked->client->calls(), worker,
                             look == 0 ? line.timeout : std::min(line.timeout, absl::Seconds(2)));
      if (!its.ok()) failures.push_back(its.status());
      if (its.ok()) rows.insert(rows.end(), its->begin(), its->end());
    }
    exit = failures.empty() ? kExitDone : kExitFailed;
    if (terminal) std::fputs("\033[H\033[J", stdout);
    std::fputs(line.json ? Json(rows, failures).c_str() : Table(rows, colours).c_str(), stdout);
    for (const absl::Status& failure : failures) {
      if (!line.json) Show(absl::StrCat(Printable(failure.ToString()), "\n"), false);
    }
    std::fflush(stdout);
  }
  return exit;
}

}  // namespace tryst
