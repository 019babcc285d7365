#include "server/status/insight.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/log_record.h"
#include "base/printable.h"
#include "channel/trace/json_text.h"

namespace tryst {
namespace {

constexpr size_t kMostListed = 1000;

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// "3.2 s" or another unit that suits.
std::string Age(int64_t since_ns, int64_t now_ns) {
  const absl::Duration age = absl::Nanoseconds(now_ns - since_ns);
  return absl::FormatDuration(
      absl::Trunc(age, age > absl::Seconds(10) ? absl::Seconds(1) : absl::Milliseconds(1)));
}

// "41 us", "3.2 ms", "8.59 s": three digits, in a unit that suits.
std::string DurationText(double ns) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}};
  for (const auto& [unit_ns, unit] : kUnits) {
    const double count = ns / unit_ns;
    if (count >= 99.95) return absl::StrFormat("%.0f %s", count, unit);
    if (count >= 1) return absl::StrFormat("%.3g %s", count, unit);
  }
  return absl::StrFormat("%.0f ns", ns);
}

const char* RoleName(TraceRole role) { return role == TraceRole::kFetch ? "fetch" : "serve"; }

}  // namespace

// ---- Who waits ----

Insight::Listed Insight::ListOps(int64_t step) const {
  LiveOps ops(kMostListed, step);
  Listed listed;
  const absl::Status asked = parts_.pools->ListOps(&ops);
  if (!asked.ok()) listed.trouble = std::string(asked.message());
  listed.left_out = ops.left_out();
  listed.ops = ops.Take();
  return listed;
}

std::string Insight::WaitingText(int64_t step) const {
  const Listed listed = ListOps(step);
  std::string out =
      listed.trouble.empty() ? "" : absl::StrCat("TROUBLE: ", Printable(listed.trouble), "\n");
  absl::StrAppend(&out, parts_.steps->DumpWaitingText(kMostListed, step),
                  LiveOpsText(listed.ops, listed.left_out, parts_.clock->NowNs()));
  return out.empty() ? "nothing waits\n" : out;
}

std::string Insight::WaitingJson(int64_t step) const {
  const Listed listed = ListOps(step);
  std::string rendezvous =
      parts_.steps->DumpWaitingJson(kMostListed, step);  // {"waiting":[...],...}
  rendezvous.pop_back();
  return absl::StrCat(
      rendezvous, ",\"operations\":", LiveOpsJson(listed.ops, parts_.clock->NowNs()),
      ",\"left_out\":", listed.left_out, ",\"trouble\":", JsonText(listed.trouble), "}\n");
}

// ---- Paths ----

std::vector<PathView> Insight::Paths(const std::string& peer, std::string* trouble) const {
  std::vector<PathView> paths;
  const absl::Status asked = parts_.pools->ViewPaths(peer, &paths);
  if (!asked.ok()) *trouble = std::string(asked.message());
  return paths;
}

TraceTrack::Counts Insight::CountsOf(const PathView& path) const {
  for (const Trace* trace : parts_.traces) {
    for (const TraceTrack* track : trace->Tracks()) {
      if (track->role == path.role && track->peer == path.peer && track->path == path.path) {
        return track->counts();
      }
    }
  }
  return {};
}

std::string Insight::PollersText() const {
  const size_t pollers = parts_.pools->all().size();
  return pollers == 1 ? "" : absl::StrCat("; ", pollers, " pollers");
}

std::string Insight::PathsText(const std::string& peer) const {
  std::string out =
      absl::StrCat(parts_.worker, ", incarnation ", absl::StrFormat("%016x", parts_.incarnation),
                   ", at ", parts_.address(), "; protocol ", parts_.protocol, ": ",
                   absl::StrJoin(parts_.pools->transport_names(), ", "), PollersText(), "\n");
  if (!parts_.encryption.empty()) absl::StrAppend(&out, "encrypted: ", parts_.encryption, "\n");
  if (parts_.look_at_membership && peer.empty()) out += parts_.look_at_membership(false);
  for (const Member& member : parts_.members->Members()) {
    if (!peer.empty()) break;
    absl::StrAppend(&out, "member ", member.worker, " at ", Printable(member.address),
                    member.incarnation == 0
                        ? ", not heard from"
                        : absl::StrFormat(", incarnation %016x", member.incarnation),
                    "\n");
  }
  std::string trouble;
  const int64_t now_ns = parts_.clock->NowNs();
  for (const PathView& path : Paths(peer, &trouble)) {
    absl::StrAppend(&out, path.role == TraceRole::kFetch ? "fetch from " : "serve to ", path.peer,
                    path.in_use ? " over " : " not over ", path.path, ": ", Printable(path.state));
    if (path.since_ns != 0) absl::StrAppend(&out, " since ", Age(path.since_ns, now_ns));
    if (path.epoch > 1) absl::StrAppend(&out, ", connection number ", path.epoch);
    if (!path.why.empty()) absl::StrAppend(&out, " (", Printable(path.why), ")");
    if (!path.note.empty()) absl::StrAppend(&out, ", ", Printable(path.note));
    if (parts_.pools->all().size() > 1) absl::StrAppend(&out, ", on poller ", path.place);
    if (path.under_way > 0) absl::StrAppend(&out, ", ", path.under_way, " under way");
    const TraceTrack::Counts counts = CountsOf(path);
    if (counts.ended_ok + counts.ended_failed > 0) {
      absl::StrAppendFormat(
          &out, "\n  measured: %d done, %d failed, %d bytes; half within %s, 99 %% within %s",
          counts.ended_ok, counts.ended_failed, counts.bytes, DurationText(counts.QuantileNs(0.5)),
          DurationText(counts.QuantileNs(0.99)));
    }
    absl::StrAppend(&out, "\n");
  }
  if (!trouble.empty()) absl::StrAppend(&out, "TROUBLE: ", Printable(trouble), "\n");
  if (parts_.grants != nullptr) out += parts_.grants->Explain(peer);
  if (parts_.explain_devices) out += parts_.explain_devices();
  for (const MemberChange& change : parts_.members->Changes()) {
    const bool wanted = change.worker == peer && absl::StartsWith(change.what, "restarted");
    if (!peer.empty() && !wanted) continue;
    absl::StrAppend(&out,
                    absl::FormatTime("%F %H:%M:%E3S", absl::FromUnixMillis(change.unix_ms),
                                     absl::LocalTimeZone()),
                    " ", change.worker, " ", Printable(change.what), "\n");
  }
  return out;
}

std::string Insight::MembersJson() const {
  std::string out = "\"members\":[";
  const char* comma = "";
  for (const Member& member : parts_.members->Members()) {
    absl::StrAppendFormat(&out, "%s{\"worker\":%s,\"address\":%s,\"incarnation\":\"%016x\"}", comma,
                          JsonText(member.worker), JsonText(member.address), member.incarnation);
    comma = ",";
  }
  absl::StrAppendFormat(&out, "],\"restarts\":%d,\"changes\":[", parts_.members->restarts());
  comma = "";
  for (const MemberChange& change : parts_.members->Changes()) {
    absl::StrAppendFormat(&out, "%s{\"unix_ms\":%d,\"worker\":%s,\"what\":%s}", comma,
                          change.unix_ms, JsonText(change.worker), JsonText(change.what));
    comma = ",";
  }
  absl::StrAppend(&out, "],\"errors\":[");
  comma = "";
  for (const LoggedLine& line : RecentTrouble()) {
    absl::StrAppendFormat(&out, "%s{\"unix_ms\":%d,\"line\":%s}", comma, line.unix_ms,
                          JsonText(absl::StrCat(line.place, " ", line.text)));
    comma = ",";
  }
  return out + "]";
}

std::string Insight::PathsJson(const std::string& peer) const {
  const int64_t now_ns = parts_.clock->NowNs();
  std::string out = absl::StrFormat(
      "{\"worker\":%s,\"incarnation\":\"%016x\",\"address\":%s,\"protocol\":%s,\"encrypted\":%s,"
      "\"encrypt_off\":%s,\"steady_ns\":%d,"
      "\"up_ms\":%d,\"membership\":%s,%s,\"paths\":[",
      JsonText(parts_.worker), parts_.incarnation, JsonText(parts_.address()),
      JsonText(parts_.protocol), JsonText(parts_.encryption), parts_.encrypt_off ? "true" : "false",
      now_ns, (now_ns - started_ns_) / 1'000'000,
      parts_.look_at_membership ? parts_.look_at_membership(true) : "{}", MembersJson());
  std::string trouble;
  const char* comma = "";
  for (const PathView& path : Paths(peer, &trouble)) {
    const TraceTrack::Counts counts = CountsOf(path);
    std::string waited;
    for (size_t i = 1; i < kWaitsForCount; ++i) {
      if (counts.waited_ns[i] == 0) continue;
      absl::StrAppendFormat(&waited, "%s\"%s\":%.3f", waited.empty() ? "" : ",",
                            WaitsForName(static_cast<WaitsFor>(i)),
                            Ms(static_cast<int64_t>(counts.waited_ns[i])));
    }
    absl::StrAppendFormat(
        &out,
        "%s{\"role\":\"%s\",\"peer\":%s,\"path\":%s,\"in_use\":%s,\"health\":\"%s\","
        "\"state\":%s,\"why\":%s,\"note\":%s,"
        "\"since_ms\":%.3f,\"epoch\":%d,\"under_way\":%d,\"poller\":%d,\"done\":%d,\"failed\":%d,"
        "\"bytes\":%d,"
        "\"p50_ms\":%.4g,\"p99_ms\":%.4g,\"waited_ms\":{%s}}",
        comma, RoleName(path.role), JsonText(path.peer), JsonText(path.path),
        path.in_use ? "true" : "false", PathHealthName(path.health), JsonText(path.state),
        JsonText(path.why), JsonText(path.note),
        path.since_ns == 0 ? 0 : Ms(now_ns - path.since_ns), path.epoch, path.under_way, path.place,
        counts.ended_ok, counts.ended_failed, counts.bytes, counts.QuantileNs(0.5) / 1e6,
        counts.QuantileNs(0.99) / 1e6, waited);
    comma = ",";
  }
  return absl::StrCat(out, "],\"weights\":", parts_.weights->Json(),
                      ",\"trouble\":", JsonText(trouble), "}\n");
}

// ---- Traces, counters ----

TraceDump Insight::Dump(const TraceFilter& filter) const {
  TraceDump dump;
  dump.worker = parts_.worker;
  dump.incarnation = parts_.incarnation;
  // Live operations are read first: one that ends meanwhile is then listed twice instead of not at
  // all.
  const Listed listed = ListOps(filter.step);
  AddLiveOps(listed.ops, filter, &dump);
  for (const Trace* trace : parts_.traces) AddRecords(*trace, filter, &dump);
  dump.now_ns = parts_.clock->NowNs();
  FinishDump(filter, &dump);
  return dump;
}

Counters Insight::AllCounters() const {
  Counters all;
  const auto add = [&all](absl::string_view name, int64_t value, bool is_gauge) {
    is_gauge ? all.Gauge(name, static_cast<uint64_t>(value))
             : all.Count(name, static_cast<uint64_t>(value));
  };
  // If the poller does not answer, the transports' counters are missing.
  (void)parts_.pools->AskCounters(&all);
  const RendezvousCounters steps = parts_.steps->counters();
  for (int i = 0; i < kCounterRowCount; ++i) {
    add(kCounterRows[i].name, steps.*kCounterRows[i].value, kCounterRows[i].gauge);
  }
  std::map<std::string, int64_t> of_devices;
  if (parts_.add_device_stats) parts_.add_device_stats(&of_devices);
  for (const auto& [name, value] : of_devices) add(name, value, false);
  if (parts_.connections) {
    const ConnectionCounts door = parts_.connections();
    add("connections_open", static_cast<int64_t>(door.open), true);
    add("connections_strangers", static_cast<int64_t>(door.strangers), true);
    add("connections_accepted", static_cast<int64_t>(door.accepted), false);
    add("connections_crowded_out", static_cast<int64_t>(door.crowded_out), false);
    add("connections_timed_out", static_cast<int64_t>(door.timed_out), false);
    add("connections_flooded", static_cast<int64_t>(door.flooded), false);
    add("connections_held_back", static_cast<int64_t>(door.held_back), false);
    add("connections_refused", static_cast<int64_t>(door.refused), false);
    add("connections_listener_rests", static_cast<int64_t>(door.listener_rests), false);
  }
  if (parts_.grants != nullptr) {
    add("region_bytes_copied", static_cast<int64_t>(parts_.grants->bytes()), false);
  }
  add("encrypt_off", parts_.encrypt_off ? 1 : 0, true);
  add("member_restarts", parts_.members->restarts(), false);
  return all;
}

std::map<std::string, int64_t> Insight::Stats() const {
  std::map<std::string, int64_t> out;
  const Counters counters = AllCounters();
  for (const auto& [name, counter] : counters.all()) out[name] = counter.value;
  return out;
}

}  // namespace tryst
