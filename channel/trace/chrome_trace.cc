#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "channel/trace/json_text.h"
#include "channel/trace/trace_dump.h"

// Writes dumps as a document of the trace event format.
namespace tryst {
namespace {

constexpr int kLanesPerTrack = 100'000;

struct Place {  // Where an arrow finds a slice.
  int pid = 0;
  int tid = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t asked_ns = 0;  // When a fetch began to wait for the producer; 0: never.
  int64_t sent_ns = 0;   // When a serve began to wait for acceptance; 0: never.
};
struct Ends {
  absl::flat_hash_map<uint64_t, Place> fetches;
  absl::flat_hash_map<uint64_t, Place> serves;
};

class Writer {
 public:
  explicit Writer(absl::Span<const TraceDump> dumps) {
    for (const TraceDump& dump : dumps) {
      for (const TraceRecord& record : dump.records) {
        zero_ns_ = std::min(zero_ns_, record.span.began_ns() - dump.ahead_ns);
      }
    }
    if (zero_ns_ == std::numeric_limits<int64_t>::max()) zero_ns_ = 0;
    for (size_t i = 0; i < dumps.size(); ++i) AddDump(dumps[i], static_cast<int>(i) + 1);
    AddArrows();
  }

  std::string Finish(absl::Span<const TraceDump> dumps) && {
    std::string other;
    for (const TraceDump& dump : dumps) {
      absl::StrAppendFormat(
          &other,
          "%s%s:{\"clock_ahead_ns\":%d,\"clock_error_ns\":%d,\"read_at\":%s,"
          "\"incarnation\":\"%016x\","
          "\"operations_ended\":%d,\"kept\":%d,\"overwritten\":%d,\"passed_over\":%d}",
          other.empty() ? "" : ",", JsonText(dump.worker), dump.ahead_ns, dump.ahead_error_ns,
          Ts(dump.now_ns - dump.ahead_ns), dump.incarnation, dump.counts.ended, dump.counts.kept,
          dump.counts.overwritten, dump.counts.passed_over);
    }
    return absl::StrCat("{\"traceEvents\":[\n", events_,
                        "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{", other, "}}\n");
  }

 private:
  void AddEvent(const std::string& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event;
  }
  // In microseconds, as the format wants, with nanoseconds as decimals.
  std::string Ts(int64_t at_ns) const { return Micros(at_ns - zero_ns_); }
  static std::string Micros(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

  void AddName(const char* what, int pid, int tid, const std::string& name) {
    AddEvent(absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", what,
                             pid, tid, JsonText(name)));
  }

  void AddSlice(int pid, int tid, const std::string& name, int64_t begin_ns, int64_t end_ns,
                const std::string& args) {
    AddEvent(absl::StrFormat(
        R"({"ph":"X","cat":"tryst","name":%s,"pid":%d,"tid":%d,"ts":%s,"dur":%s,"args":{%s}})",
        JsonText(name), pid, tid, Ts(begin_ns), Micros(end_ns - begin_ns), args));
  }

  void AddDump(const TraceDump& dump, int pid) {
    AddName("process_name", pid, 0, dump.worker);
    // Slices of one thread must not overlap, so each track gets as many lanes as it needs. Each
    // entry says until when a lane is taken.
    std::vector<std::vector<int64_t>> lanes(dump.tracks.size());  // Until when each is taken.
    for (const TraceRecord& record : dump.records) {
      const int64_t begin_ns = record.span.began_ns() - dump.ahead_ns;
      const int64_t end_ns =
          std::max(begin_ns, (record.end_ns != 0 ? record.end_ns : dump.now_ns) - dump.ahead_ns);
      auto& taken = lanes[record.track];
      const auto free = std::find_if(taken.begin(), taken.end(),
                                     [begin_ns](int64_t until) { return until <= begin_ns; });
      const int lane = static_cast<int>(free - taken.begin());
      const int tid = record.track * kLanesPerTrack + lane + 1;
      const TraceDump::Track& track = dump.tracks[record.track];
      if (free == taken.end()) {
        taken.push_back(end_ns);
        AddName("thread_name", pid, tid,
                absl::StrCat(track.role == TraceRole::kFetch ? "fetch from " : "serve to ",
                             track.peer, " by ", track.path, " #", lane + 1));
      } else {
        *free = end_ns;
      }
      AddRecord(dump, record, {pid, tid, begin_ns, end_ns, 0, 0});
    }
  }

  void AddRecord(const TraceDump& dump, const TraceRecord& record, Place place) {
    const TraceDump::Track& track = dump.tracks[record.track];
    const auto key = TensorKey::Parse(record.key);
    const std::string edge = key.ok() ? std::string(key->edge()) : record.key;
    AddSlice(
        place.pid, place.tid, edge.empty() ? "(no key)" : edge, place.begin_ns, place.end_ns,
        absl::StrFormat(R"("key":%s,"step":%d,"bytes":%d,"status":"%s","id":"%016x","path":%s,)"
                        R"("role":"%s","peer":%s,"waits":"%s","lost":%d)",
                        JsonText(record.key), record.step, record.bytes,
                        record.end_ns == 0 ? "under way" : absl::StatusCodeToString(record.code),
                        record.id, JsonText(track.path),
                        track.role == TraceRole::kFetch ? "fetch" : "serve", JsonText(track.peer),
                        Waits(record.span), record.span.lost()));
    int64_t until_ns = place.end_ns;
    for (size_t i = record.span.count(); i-- > 0;) {
      const TraceSpan::Stamp stamp = record.span.stamp(i);
      const int64_t at_ns = std::clamp(stamp.at_ns - dump.ahead_ns, place.begin_ns, until_ns);
      AddSlice(place.pid, place.tid, absl::StrCat("waits for ", WaitsForText(stamp.what)), at_ns,
               until_ns, "");
      if (stamp.what == WaitsFor::kPeerSend) place.asked_ns = at_ns;
      if (stamp.what == WaitsFor::kAcceptance) place.sent_ns = at_ns;
      until_ns = at_ns;
    }
    if (record.id == 0) return;
    (track.role == TraceRole::kFetch ? ends_.fetches : ends_.serves)[record.id] = place;
  }

  // "slot 0 peer_send 1500": each with the nanoseconds since its begin.
  static std::string Waits(const TraceSpan& span) {
    std::string waits;
    for (size_t i = 0; i < span.count(); ++i) {
      absl::StrAppend(&waits, i == 0 ? "" : " ", WaitsForName(span.stamp(i).what), " ",
                      span.stamp(i).at_ns - span.began_ns());
    }
    return waits;
  }

  void AddArrow(const std::string& id, const char* name, const Place& from, int64_t from_ns,
                const Place& to, int64_t to_ns) {
    // Clocks are compared with an error, but an arrow must not go back in time.
    to_ns = std::max(to_ns, from_ns);
    if (to_ns > to.end_ns) return;
    const auto end = [&](const char* phase, const Place& place, int64_t at_ns) {
      AddEvent(absl::StrFormat(
          R"({"ph":"%s","bp":"e","cat":"tryst","name":"%s","id":"%s","pid":%d,"tid":%d,"ts":%s})",
          phase, name, id, place.pid, place.tid, Ts(at_ns)));
    };
    end("s", from, from_ns);
    end("f", to, to_ns);
  }

  void AddArrows() {
    for (const auto& [id, fetch] : ends_.fetches) {
      const auto serve = ends_.serves.find(id);
      if (serve == ends_.serves.end()) continue;
      const std::string name = absl::StrFormat("%016x", id);
      if (fetch.asked_ns != 0) {
        AddArrow(name + "-request", "request", fetch, fetch.asked_ns, serve->second,
                 serve->second.begin_ns);
      }
      if (serve->second.sent_ns != 0) {
        AddArrow(name + "-tensor", "tensor", serve->second, serve->second.sent_ns, fetch,
                 serve->second.sent_ns);
      }
    }
  }

  int64_t zero_ns_ = std::numeric_limits<int64_t>::max();
  std::string events_;
  Ends ends_;
};

}  // namespace

std::string ChromeTrace(absl::Span<const TraceDump> dumps) { return Writer(dumps).Finish(dumps); }

}  // namespace tryst
