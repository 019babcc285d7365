#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status/insight.h"

// Prints a worker's counters in Prometheus's text format.
namespace tryst {
namespace {

std::string Label(absl::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

class Page {
 public:
  void Family(absl::string_view name, absl::string_view type, absl::string_view help) {
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void Sample(absl::string_view name, absl::string_view labels, absl::string_view value) {
    absl::StrAppend(&text_, name, labels.empty() ? "" : "{", labels, labels.empty() ? "" : "}", " ",
                    value, "\n");
  }
  std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
};

std::string Seconds(uint64_t ns) { return absl::StrFormat("%.9g", static_cast<double>(ns) / 1e9); }

struct TrackSample {
  std::string labels;
  TraceTrack::Counts counts;
};

void AddHistogram(const TrackSample& sample, Page* page) {
  // These differ by a factor of four, which is enough for a graph.
  for (int bits = 11; bits < 34; bits += 2) {
    const uint64_t ns = uint64_t{1} << bits;
    page->Sample("tryst_operation_seconds_bucket",
                 absl::StrCat(sample.labels, ",le=\"", Seconds(ns), "\""),
                 absl::StrCat(sample.counts.TookLessThan(ns)));
  }
  const uint64_t seen = sample.counts.TookLessThan(UINT64_MAX);
  page->Sample("tryst_operation_seconds_bucket", absl::StrCat(sample.labels, ",le=\"+Inf\""),
               absl::StrCat(seen));
  page->Sample("tryst_operation_seconds_sum", sample.labels, Seconds(sample.counts.total_ns));
  page->Sample("tryst_operation_seconds_count", sample.labels, absl::StrCat(seen));
}

void AddTracks(const std::vector<TrackSample>& samples, Page* page) {
  page->Family("tryst_operations_total", "counter", "Fetches and serves that have ended.");
  for (const TrackSample& sample : samples) {
    page->Sample("tryst_operations_total", absl::StrCat(sample.labels, ",result=\"ok\""),
                 absl::StrCat(sample.counts.ended_ok));
    page->Sample("tryst_operations_total", absl::StrCat(sample.labels, ",result=\"failed\""),
                 absl::StrCat(sample.counts.ended_failed));
  }
  page->Family("tryst_bytes_total", "counter", "Bytes of the tensors that these operations moved.");
  for (const TrackSample& sample : samples) {
    page->Sample("tryst_bytes_total", sample.labels, absl::StrCat(sample.counts.bytes));
  }
  page->Family("tryst_operation_seconds", "histogram",
               "How long each operation took, from its first to its last moment.");
  for (const TrackSample& sample : samples) AddHistogram(sample, page);
  page->Family("tryst_waited_seconds_total", "counter",
               "How long operations waited, by what they waited for.");
  for (const TrackSample& sample : samples) {
    for (size_t i = 1; i < kWaitsForCount; ++i) {
      if (sample.counts.waited_ns[i] == 0) continue;
      page->Sample(
          "tryst_waited_seconds_total",
          absl::StrCat(sample.labels, ",for=\"", WaitsForName(static_cast<WaitsFor>(i)), "\""),
          Seconds(sample.counts.waited_ns[i]));
    }
  }
}

// One row a family of metrics of weight sets.
struct WeightMetric {
  const char* name;
  const char* type;
  bool (*has)(const WeightView&);
  double (*value)(const WeightView&);
  const char* help;
};
constexpr WeightMetric kWeightMetrics[] = {
    {"tryst_weights_active_version", "gauge", [](const WeightView& v) { return v.active != 0; },
     [](const WeightView& v) { return static_cast<double>(v.active); },
     "The active version of the set, as this worker knows."},
    {"tryst_weights_active_seconds", "gauge", [](const WeightView& v) { return v.active != 0; },
     [](const WeightView& v) { return v.active_s; }, "For how long it has been active."},
    {"tryst_weights_newest_version", "gauge", [](const WeightView& v) { return v.newest != 0; },
     [](const WeightView& v) { return static_cast<double>(v.newest); },
     "The newest sealed version of the set, as this worker knows."},
    {"tryst_weights_members", "gauge", [](const WeightView& v) { return v.leads; },
     [](const WeightView& v) { return static_cast<double>(v.members); },
     "Members of the set, as its leader knows."},
    {"tryst_weights_members_behind", "gauge", [](const WeightView& v) { return v.leads; },
     [](const WeightView& v) { return static_cast<double>(v.behind); },
     "Members that do not serve the active version."},
    {"tryst_weights_serves", "gauge", [](const WeightView& v) { return v.role == "member"; },
     [](const WeightView& v) { return v.serves != 0 && v.confirmed ? 1.0 : 0.0; },
     "1: this member has a permit to serve its version."},
    {"tryst_weights_permits_lost_total", "counter",
     [](const WeightView& v) { return v.role == "member"; },
     [](const WeightView& v) { return static_cast<double>(v.permits_lost); },
     "How often the permit of this member has run out."},
    {"tryst_weights_held_bytes", "gauge",
     [](const WeightView& v) { return v.role == "owner" || v.held_bytes > 0; },
     [](const WeightView& v) { return static_cast<double>(v.held_bytes); },
     "Bytes of the versions that this owner keeps, or that this member has for others."},
    {"tryst_weights_sent_on_bytes_total", "counter",
     [](const WeightView& v) { return v.role == "member"; },
     [](const WeightView& v) { return static_cast<double>(v.sent_on); },
     "Bytes of tensors that this member has sent to others."},
    {"tryst_weights_bytes_total", "counter", [](const WeightView&) { return true; },
     [](const WeightView& v) { return static_cast<double>(v.bytes); },
     "Bytes of tensors that an owner has sent, or that a member or observer has fetched."},
};

void AddWeights(const std::vector<WeightView>& views, Page* page) {
  for (const WeightMetric& metric : kWeightMetrics) {
    bool any = false;
    for (const WeightView& view : views) {
      if (!metric.has(view)) continue;
      if (!any) page->Family(metric.name, metric.type, metric.help);
      any = true;
      page->Sample(metric.name,
                   absl::StrFormat("set=\"%s\",role=\"%s\",incarnation=\"%016x\"", Label(view.set),
                                   view.role, view.incarnation),
                   absl::StrFormat("%.15g", metric.value(view)));
    }
  }
}

}  // namespace

std::string Insight::Metrics() const {
  Page page;
  page.Family("tryst_worker", "gauge", "Always 1; the labels name the worker and its incarnation.");
  page.Sample("tryst_worker",
              absl::StrFormat("worker=\"%s\",incarnation=\"%016x\",protocol=\"%s\"",
                              Label(parts_.worker), parts_.incarnation, Label(parts_.protocol)),
              "1");
  page.Family("tryst_up_seconds", "gauge", "How long this incarnation of the worker has run.");
  page.Sample("tryst_up_seconds", "",
              Seconds(static_cast<uint64_t>(parts_.clock->NowNs() - started_ns_)));
  const Counters counters = AllCounters();
  for (const auto& [name, counter] : counters.all()) {
    const std::string full = absl::StrCat("tryst_", name, counter.is_gauge ? "" : "_total");
    page.Family(full, counter.is_gauge ? "gauge" : "counter", "See docs/OPERATIONS.md.");
    page.Sample(full, "", absl::StrCat(counter.value));
  }
  std::vector<TrackSample> samples;
  Trace::Counts counts;
  for (const Trace* trace : parts_.traces) {
    for (const TraceTrack* track : trace->Tracks()) {
      TrackSample sample{absl::StrFormat("role=\"%s\",peer=\"%s\",path=\"%s\"",
                                         track->role == TraceRole::kFetch ? "fetch" : "serve",
                                         Label(track->peer), Label(track->path)),
                         track->counts()};
      const bool used = sample.counts.ended_ok + sample.counts.ended_failed > 0;
      if (used || !track->peer.empty()) samples.push_back(std::move(sample));
    }
    counts.ended += trace->counts().ended;
    counts.overwritten += trace->counts().overwritten;
    counts.passed_over += trace->counts().passed_over;
  }
  AddTracks(samples, &page);
  AddWeights(parts_.weights->List(), &page);
  page.Family("tryst_trace_overwritten_total", "counter",
              "Recorded operations that newer ones have overwritten.");
  page.Sample("tryst_trace_overwritten_total", "", absl::StrCat(counts.overwritten));
  page.Family("tryst_trace_passed_over_total", "counter",
              "Operations that were not recorded, because sampling left them out.");
  page.Sample("tryst_trace_passed_over_total", "", absl::StrCat(counts.passed_over));
  return std::move(page).Take();
}

}  // namespace tryst
