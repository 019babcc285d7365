#include "tests/process/history/kept_traces.h"

#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/ops/verify_traces.h"

namespace tryst {
namespace {

// The soak stops processes for up to 6 s.
constexpr int64_t kLongestTurnNs = 10'000'000'000;
constexpr size_t kMostBreaches = 20;  // Which a judgement prints.

// What stands at the end of a line and may have blanks, or be empty.
std::string Rest(std::istringstream* line) {
  std::string rest;
  line->get();
  std::getline(*line, rest);
  return rest;
}

std::string LineOf(const TraceRecord& record) {
  std::string line = absl::StrCat(
      "o ", record.id, " ", record.step, " ", record.track, " ", record.end_ns, " ", record.bytes,
      " ", static_cast<int>(record.code), " ", record.span.lost(), " ", record.span.count());
  for (size_t i = 0; i < record.span.count(); ++i) {
    const TraceSpan::Stamp stamp = record.span.stamp(i);
    absl::StrAppend(&line, " ", static_cast<int>(stamp.what), " ", stamp.at_ns);
  }
  return absl::StrCat(line, " ", record.key, "\n");
}

bool ReadOperation(std::istringstream* line, TraceDump* dump) {
  TraceRecord record;
  int code = 0;
  uint16_t lost = 0;
  size_t count = 0;
  *line >> record.id >> record.step >> record.track >> record.end_ns >> record.bytes >> code >>
      lost >> count;
  if (!*line || count > TraceSpan::kStamps || record.track >= dump->tracks.size()) return false;
  for (size_t i = 0; i < count; ++i) {
    size_t what = 0;
    int64_t at_ns = 0;
    if (!(*line >> what >> at_ns) || what >= kWaitsForCount) return false;
    if (i == 0) {
      record.span.Begin(static_cast<WaitsFor>(what), at_ns);
    } else {
      record.span.Enter(static_cast<WaitsFor>(what), at_ns);
    }
  }
  record.code = static_cast<absl::StatusCode>(code);
  record.span.id = record.id;
  record.span.set_lost(lost);
  record.key = Rest(line);
  dump->records.push_back(std::move(record));
  return true;
}

bool ReadLine(const std::string& text, TraceDump* dump) {
  std::istringstream line(text);
  std::string kind;
  line >> kind;
  if (kind == "w") {
    line >> dump->incarnation >> dump->now_ns >> dump->counts.ended >> dump->counts.kept >>
        dump->counts.overwritten >> dump->counts.passed_over >> dump->worker;
    return !line.fail();
  }
  if (kind == "t") {
    TraceDump::Track track;
    int role = 0;
    if (!(line >> role >> track.path) || role > 1) return false;
    track.role = static_cast<TraceRole>(role);
    track.peer = Rest(&line);
    dump->tracks.push_back(std::move(track));
    return true;
  }
  return kind == "o" && ReadOperation(&line, dump);
}

}  // namespace

TraceOptions EveryOperation(size_t records) {
  TraceOptions options;
  options.sample_every = 1;
  options.records = records;
  return options;
}

TraceDump DumpOf(const Trace& trace, const std::string& worker, uint64_t incarnation,
                 int64_t now_ns, const std::vector<LiveOp>& under_way) {
  TraceFilter all;
  all.most = std::numeric_limits<size_t>::max();
  TraceDump dump;
  dump.worker = worker;
  dump.incarnation = incarnation;
  dump.now_ns = now_ns;
  AddRecords(trace, all, &dump);
  AddLiveOps(under_way, all, &dump);
  FinishDump(all, &dump);
  return dump;
}

void KeepTraces(const std::string& history, const TraceDump& dump) {
  if (history.empty()) return;
  std::ofstream out(absl::StrCat(history, kTracesEnd));
  out << "w " << dump.incarnation << " " << dump.now_ns << " " << dump.counts.ended << " "
      << dump.counts.kept << " " << dump.counts.overwritten << " " << dump.counts.passed_over << " "
      << dump.worker << "\n";
  for (const TraceDump::Track& track : dump.tracks) {
    out << "t " << static_cast<int>(track.role) << " " << track.path << " " << track.peer << "\n";
  }
  for (const TraceRecord& record : dump.records) out << LineOf(record);
  out.close();
  TRYST_CHECK(!out.fail()) << "what was traced cannot be written to " << history;
}

absl::StatusOr<TraceDump> ReadKeptTraces(const std::string& text) {
  TraceDump dump;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!ReadLine(line, &dump)) {
      return absl::DataLossError(absl::StrCat("no line of a trace: ", line));
    }
  }
  return dump;
}

TracesJudgement JudgeTraces(const std::vector<TraceDump>& dumps) {
  const TraceVerdict verdict = VerifyTraces(dumps, kLongestTurnNs);
  TracesJudgement judgement;
  judgement.operations = verdict.operations;
  judgement.pairs = verdict.pairs;
  for (size_t i = 0; i < verdict.breaches.size() && i < kMostBreaches; ++i) {
    const TraceBreach& breach = verdict.breaches[i];
    absl::StrAppend(&judgement.breaches, "by the traces, at ", breach.at_ns, " ns: ", breach.what,
                    "\n");
  }
  if (verdict.breaches.size() > kMostBreaches) {
    absl::StrAppend(&judgement.breaches, "by the traces: ", verdict.breaches.size(),
                    " breaches in all\n");
  }
  return judgement;
}

}  // namespace tryst
