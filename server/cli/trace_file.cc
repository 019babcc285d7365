#include "server/cli/trace_file.h"

#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/trace_file.pb.h"

namespace tryst {
namespace {

constexpr size_t kMostLineBytes = 1 << 20;
// A time of 104 days: what a double tells to the nanosecond.
constexpr double kMostMicros = 9e12;
constexpr size_t kMostDumps = 1 << 16;
constexpr char kEventsEnd[] = "],";  // Before what the last line says of the workers.

absl::Status Parse(absl::string_view line, google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions lenient;
  lenient.ignore_unknown_fields = true;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage({line.data(), line.size()}, message, lenient);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(parsed.message()));
}

absl::StatusOr<WaitsFor> WaitsForOf(absl::string_view name) {
  for (size_t i = 0; i < kWaitsForCount; ++i) {
    if (WaitsForName(static_cast<WaitsFor>(i)) == name) return static_cast<WaitsFor>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' in 'waits' is nothing that an operation can wait for"));
}

absl::StatusOr<absl::StatusCode> CodeOf(absl::string_view name) {
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(code)) == name) {
      return static_cast<absl::StatusCode>(code);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not the name of a status"));
}

absl::StatusOr<int64_t> NanosOf(double micros) {
  if (!(micros >= 0 && micros <= kMostMicros)) {
    return absl::InvalidArgumentError("a time is negative or too large");
  }
  return static_cast<int64_t>(std::llround(micros * 1000));
}

// "slot 0 peer_send 1500"
absl::Status ReadWaits(absl::string_view waits, int64_t began_ns, TraceSpan* span) {
  const std::vector<absl::string_view> words = absl::StrSplit(waits, ' ', absl::SkipEmpty());
  if (words.empty() || words.size() % 2 != 0 || words.size() > 2 * TraceSpan::kStamps) {
    return absl::InvalidArgumentError(
        "'waits' should hold pairs of what the operation waited for and since when");
  }
  for (size_t i = 0; i < words.size(); i += 2) {
    const auto what = WaitsForOf(words[i]);
    if (!what.ok()) return what.status();
    int64_t at_ns = 0;
    if (!absl::SimpleAtoi(words[i + 1], &at_ns) || at_ns < 0) {
      return absl::InvalidArgumentError("a time in 'waits' is not a number from 0 on");
    }
    i == 0 ? span->Begin(*what, began_ns) : span->Enter(*what, began_ns + at_ns);
  }
  return absl::OkStatus();
}

class Reader {
 public:
  absl::Status Line(absl::string_view line) {
    line = absl::StripTrailingAsciiWhitespace(line);
    if (line.empty() || absl::StartsWith(line, "{\"traceEvents\"")) return absl::OkStatus();
    if (absl::ConsumePrefix(&line, kEventsEnd)) return Workers(absl::StrCat("{", line));
    absl::ConsumeSuffix(&line, ",");
    rpc::TraceFileEvent event;
    const absl::Status parsed = Parse(line, &event);
    if (!parsed.ok()) return parsed;
    if (event.pid() < 0 || static_cast<size_t>(event.pid()) > kMostDumps) {
      return absl::InvalidArgumentError("the number of a worker (pid) is out of range");
    }
    if (event.name() == "process_name") {
      dumps_[event.pid()].worker = event.args().name();
      return absl::OkStatus();
    }
    if (event.ph() != "X" || event.args().id().empty()) return absl::OkStatus();
    return Operation(event);
  }

  absl::StatusOr<std::vector<TraceDump>> Finish() && {
    if (!ended_) return absl::InvalidArgumentError("the end of the file is missing: trace again");
    std::vector<TraceDump> dumps;
    for (auto& [pid, dump] : dumps_) dumps.push_back(std::move(dump));
    return dumps;
  }

 private:
  absl::Status Operation(const rpc::TraceFileEvent& event) {
    const rpc::TraceFileArgs& args = event.args();
    if (args.role() != "fetch" && args.role() != "serve") {
      return absl::InvalidArgumentError(
          "an older release wrote the trace, and left out what verify needs: trace again with this "
          "release");
    }
    TraceDump& dump = dumps_[event.pid()];
    const auto began_ns = NanosOf(event.ts());
    const auto took_ns = NanosOf(event.dur());
    TraceRecord record;
    if (!began_ns.ok() || !took_ns.ok())
      return absl::InvalidArgumentError("a time is negative or too large");
    absl::Status read = ReadWaits(args.waits(), *began_ns, &record.span);
    if (!read.ok()) return read;
    if (!absl::SimpleHexAtoi(args.id(), &record.id)) {
      return absl::InvalidArgumentError("the id of an operation is not a hexadecimal number");
    }
    record.span.id = record.id;
    record.span.set_lost(static_cast<uint16_t>(args.lost()));
    record.step = args.step();
    record.key = args.key();
    record.bytes = args.bytes();
    if (args.status() != "under way") {
      const auto code = CodeOf(args.status());
      if (!code.ok()) return code.status();
      record.code = *code;
      record.end_ns = *began_ns + *took_ns;
      if (record.end_ns == 0) record.end_ns = 1;  // 0 says that it is under way.
    }
    record.track = TrackOf(args, &dump);
    dump.records.push_back(std::move(record));
    return absl::OkStatus();
  }

  uint16_t TrackOf(const rpc::TraceFileArgs& args, TraceDump* dump) {
    const TraceRole role = args.role() == "fetch" ? TraceRole::kFetch : TraceRole::kServe;
    const auto added =
        tracks_.emplace(std::make_tuple(dump, role, args.peer(), args.path()), dump->tracks.size());
    if (added.second) dump->tracks.push_back({role, args.peer(), args.path()});
    return static_cast<uint16_t>(added.first->second);
  }

  absl::Status Workers(const std::string& text) {
    rpc::TraceFileEnd end;
    const absl::Status parsed = Parse(text, &end);
    if (!parsed.ok()) return parsed;
    for (auto& [pid, dump] : dumps_) {
      const auto found = end.other_data().find(dump.worker);
      if (found == end.other_data().end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the trace lacks the clock and counts of the worker ", dump.worker));
      }
      const rpc::TraceFileWorker& worker = found->second;
      const auto read_ns = NanosOf(worker.read_at());
      if (!read_ns.ok() || !absl::SimpleHexAtoi(worker.incarnation(), &dump.incarnation)) {
        return absl::InvalidArgumentError("the time or incarnation of a worker cannot be read");
      }
      dump.now_ns = *read_ns;
      dump.ahead_error_ns = worker.clock_error_ns();
      dump.counts.ended = worker.operations_ended();
      dump.counts.kept = worker.kept();
      dump.counts.overwritten = worker.overwritten();
      dump.counts.passed_over = worker.passed_over();
    }
    ended_ = true;
    return absl::OkStatus();
  }

  std::map<int32_t, TraceDump> dumps_;
  std::map<std::tuple<const TraceDump*, TraceRole, std::string, std::string>, size_t> tracks_;
  bool ended_ = false;
};

}  // namespace

absl::StatusOr<std::vector<TraceDump>> ReadTraceFile(std::istream* in) {
  Reader reader;
  std::string line;
  for (int number = 1; std::getline(*in, line); ++number) {
    const absl::Status read = line.size() <= kMostLineBytes
                                  ? reader.Line(line)
                                  : absl::InvalidArgumentError("the line is too long");
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", read.message()));
    }
  }
  return std::move(reader).Finish();
}

}  // namespace tryst
