#include "server/page/job_watch.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/members/membership.h"
#include "server/members/peer_calls.h"
#include "server/page/explained.h"

namespace tryst {
namespace {

constexpr int kAskers = 8;
constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr size_t kMostTraces = 400;   // One worker's, in one query.
constexpr size_t kMostChanges = 200;  // All workers' together.
constexpr size_t kMostKeyTextBytes = 1 << 20;
constexpr int64_t kJsonEveryNs = 500'000'000;

}  // namespace

JobWatch::JobWatch(PeerClient* client, absl::Duration every, const Clock* clock)
    : client_(client), every_(every), clock_(clock) {
  MutexLock lock(&mu_);
  Meet(client_->members()->Members());
  for (int i = 0; i < kAskers; ++i) threads_.emplace_back([this] { Run(); });
}

JobWatch::~JobWatch() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void JobWatch::Meet(const std::vector<Member>& members) {
  for (const Member& member : members) {
    if (member.worker.empty() || member.address.empty()) continue;
    const auto it = looks_.find(member.worker);
    if (it == looks_.end() && looks_.size() >= kMostWorkers) continue;
    Look& look = looks_[member.worker];
    // A worker's own answer goes before what others say of it.
    if (look.heard_ns != 0 && look.error.empty()) continue;
    if (look.address == member.address) continue;
    look.address = member.address;
    look.due_ns = 0;
    client_->members()->Set(member.worker, member.address);
  }
}

void JobWatch::Merge(const std::vector<MemberChange>& changes) {
  for (const MemberChange& change : changes) {
    // Several members report the same change: about the same time and the same words.
    const bool known = std::any_of(changes_.begin(), changes_.end(), [&](const MemberChange& old) {
      return old.worker == change.worker && old.what == change.what &&
             std::abs(old.unix_ms - change.unix_ms) < 10'000;
    });
    if (known) continue;
    const auto place =
        std::upper_bound(changes_.begin(), changes_.end(), change.unix_ms,
                         [](int64_t at, const MemberChange& old) { return at < old.unix_ms; });
    if (place == changes_.begin() && changes_.size() == kMostChanges) continue;
    changes_.insert(place, change);
    if (changes_.size() > kMostChanges) changes_.pop_front();
  }
}

// Waits for a worker that is due, and takes it. False: the watch is closing.
bool JobWatch::Next(std::string* worker, Look* look) {
  MutexLock lock(&mu_);
  while (!closing_) {
    auto first = looks_.end();
    for (auto it = looks_.begin(); it != looks_.end(); ++it) {
      if (it->second.busy) continue;
      if (first == looks_.end() || it->second.due_ns < first->second.due_ns) first = it;
    }
    const int64_t wait_ns =
        first == looks_.end() ? 1'000'000'000 : first->second.due_ns - clock_->NowNs();
    if (first != looks_.end() && wait_ns <= 0) {
      first->second.busy = true;
      *worker = first->first;
      *look = first->second;
      return true;
    }
    changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns));
  }
  return false;
}

void JobWatch::Run() {
  std::string worker;
  Look look;
  while (Next(&worker, &look)) {
    std::vector<Member> members;
    std::vector<MemberChange> changes;
    const absl::Status asked = Ask(worker, &look, &members, &changes);
    look.busy = false;
    look.error = asked.ok() ? "" : std::string(asked.message());
    // A worker that does not answer is asked less often, because each try keeps a thread until it
    // times out.
    const absl::Duration pause = asked.ok() ? every_ : every_ * 4;
    look.due_ns = clock_->NowNs() + absl::ToInt64Nanoseconds(pause);
    if (asked.ok()) look.heard_ns = clock_->NowNs();
    MutexLock lock(&mu_);
    Look& kept = looks_[worker];
    if (!asked.ok() && kept.address != look.address) {  // The worker has moved meanwhile.
      look.address = kept.address;
      look.due_ns = 0;
    }
    kept = std::move(look);
    Meet(members);
    Merge(changes);
    changed_.NotifyAll();
  }
}

absl::Status JobWatch::Ask(const std::string& worker, Look* look, std::vector<Member>* members,
                           std::vector<MemberChange>* changes) {
  const auto text = client_->calls()->Explain(worker, "", true, kTimeout);
  if (!text.ok()) return text.status();
  google::protobuf::Struct document;
  if (!google::protobuf::util::JsonStringToMessage(*text, &document).ok()) {
    return absl::DataLossError(
        "the answer is not JSON: see whether that address is a Tryst worker of this release");
  }
  const double steady_s = JsonNumber(document, "steady_ns") / 1e9;
  const std::string incarnation = JsonString(document, "incarnation");
  const bool same = look->incarnation == incarnation && look->heard_ns != 0;
  const double past_s = same ? steady_s - look->steady_s : 0;
  look->incarnation = incarnation;
  look->steady_s = steady_s;
  look->up_ms = JsonNumber(document, "up_ms");
  *members = ExplainedMembers(document);
  *changes = ExplainedChanges(document);
  ReadEdges(ExplainedPaths(document), past_s, look);
  look->weights = ExplainedWeights(document);
  if (look->weights.size() > kMostWeightsBytes) look->weights.clear();
  if (look->ahead_of != incarnation) {
    const auto clock = client_->calls()->CompareClocks(worker, kTimeout);
    if (!clock.ok()) return clock.status();
    look->ahead_ns = clock->ahead_ns;
    look->ahead_of = incarnation;
  }
  TraceFilter filter;
  filter.most = kMostTraces;
  const auto dump = client_->calls()->TraceKey(worker, filter, kTimeout);
  if (dump.ok()) ReadSteps(*dump, look);
  return absl::OkStatus();
}

// `past_s` is the time since the last query; 0: this incarnation was not asked before.
void JobWatch::ReadEdges(const std::vector<ExplainedPath>& paths, double past_s, Look* look) {
  std::map<std::string, Totals> totals;
  std::map<std::string, JobEdge> edges;
  for (const ExplainedPath& path : paths) {
    if (!path.fetches) continue;
    if (edges.size() >= kMostEdgesOfWorker && edges.count(path.peer) == 0) continue;
    const std::string id = absl::StrCat(path.peer, " ", path.path);
    Totals now{path.done, path.failed, path.bytes, path.waited_ms};
    const auto past = look->totals.find(id);
    JobEdge& edge = edges[path.peer];
    edge.producer = path.peer;
    if (past_s > 0) {
      AddRates(past == look->totals.end() ? Totals() : past->second, now, past_s, &edge);
    }
    edge.under_way += path.under_way;
    edge.failed += now.failed;
    if (path.in_use) {
      edge.path = path.path;
      edge.p99_ms = path.p99_ms;
      edge.bad |= path.failing;
    }
    if ((!path.in_use || !path.why.empty()) && path.state != "not tried") {
      absl::StrAppend(&edge.why, edge.why.empty() ? "" : "; ", path.path, ": ", path.state,
                      path.why.empty() ? "" : absl::StrCat(" (", path.why, ")"));
    }
    totals[id] = std::move(now);
  }
  look->totals = std::move(totals);
  look->edges.clear();
  for (auto& [peer, edge] : edges) {
    // No worker has tried this edge yet.
    if (edge.path.empty() && edge.why.empty() && edge.under_way == 0) continue;
    edge.bad |= edge.path.empty();
    look->edges.push_back(std::move(edge));
  }
}

void JobWatch::AddRates(const Totals& before, const Totals& now, double past_s, JobEdge* edge) {
  edge->megabytes_per_s =
      std::max(0.0, edge->megabytes_per_s) + (now.bytes - before.bytes) / past_s / 1e6;
  edge->operations_per_s =
      std::max(0.0, edge->operations_per_s) + (now.done - before.done) / past_s;
  edge->bad |= now.failed > before.failed;
  double most_ms = 0;
  for (const auto& [what, ms] : now.waited_ms) {
    const auto had = before.waited_ms.find(what);
    const double more_ms = ms - (had == before.waited_ms.end() ? 0 : had->second);
    if (what == "peer_send") edge->awaited_ms_per_s += more_ms / past_s;
    if (more_ms > most_ms) edge->mostly = what;
    most_ms = std::max(most_ms, more_ms);
  }
}

void JobWatch::ReadSteps(const TraceDump& dump, Look* look) const {
  std::map<int64_t, JobStep> steps;
  for (const JobStep& old : look->steps) steps[old.step] = old;
  for (const TraceRecord& record : dump.records) {
    if (record.track >= dump.tracks.size()) continue;
    const TraceDump::Track& track = dump.tracks[record.track];
    if (track.role != TraceRole::kFetch) continue;
    const int64_t begin_ns = record.span.began_ns() - look->ahead_ns;
    const int64_t end_ns = (record.end_ns == 0 ? dump.now_ns : record.end_ns) - look->ahead_ns;
    const auto [it, fresh] = steps.emplace(record.step, JobStep());
    JobStep& step = it->second;
    step.step = record.step;
    step.begin_ns = fresh ? begin_ns : std::min(step.begin_ns, begin_ns);
    step.end_ns = std::max(step.end_ns, end_ns);
    for (size_t i = 0; i < record.span.count(); ++i) {
      const auto stamp = record.span.stamp(i);
      const int64_t until_ns =
          i + 1 < record.span.count() ? record.span.stamp(i + 1).at_ns : end_ns + look->ahead_ns;
      if (until_ns - stamp.at_ns <= step.longest_ns) continue;
      step.longest_ns = until_ns - stamp.at_ns;
      step.longest = std::string(WaitsForName(stamp.what));
      step.longest_peer = track.peer;
    }
  }
  look->steps.clear();
  for (auto& [number, step] : steps) look->steps.push_back(std::move(step));
  std::sort(look->steps.begin(), look->steps.end(),
            [](const JobStep& a, const JobStep& b) { return a.end_ns > b.end_ns; });
  if (look->steps.size() > kMostStepsOfWorker) look->steps.resize(kMostStepsOfWorker);
}

std::string JobWatch::WorkerJson(const std::string& worker) {
  const auto paths = client_->calls()->Explain(worker, "", true, kTimeout);
  if (!paths.ok()) return absl::StrCat("{\"error\":", JsonQuoted(paths.status().message()), "}");
  const auto waiting = client_->calls()->DumpWaiting(worker, -1, true, kTimeout);
  return absl::StrCat("{\"paths\":", *paths, ",\"waiting\":", waiting.ok() ? *waiting : "null",
                      "}");
}

std::string JobWatch::KeyText(const std::string& key) {
  std::vector<std::pair<std::string, int64_t>> workers;
  {
    MutexLock lock(&mu_);
    for (const auto& [worker, look] : looks_) {
      if (look.error.empty() && look.heard_ns != 0) workers.emplace_back(worker, look.ahead_ns);
    }
  }
  TraceFilter filter;
  filter.key_part = key;
  filter.most = 50;
  std::vector<TraceDump> dumps;
  const int64_t until_ns = clock_->NowNs() + absl::ToInt64Nanoseconds(kTimeout);
  for (const auto& [worker, ahead_ns] : workers) {
    if (clock_->NowNs() > until_ns) break;  // The page's thread must not wait longer.
    auto dump = client_->calls()->TraceKey(worker, filter, kTimeout);
    if (!dump.ok() || dump->records.empty()) continue;
    dump->ahead_ns = ahead_ns;
    dumps.push_back(*std::move(dump));
  }
  std::string text = TraceText(dumps);
  if (text.size() > kMostKeyTextBytes) text.resize(kMostKeyTextBytes);
  return text.empty() ? "no trace of it is kept: quick operations are sampled\n" : text;
}

std::string JobWatch::Json() {
  MutexLock lock(&mu_);
  if (json_.empty() || clock_->NowNs() - json_ns_ > kJsonEveryNs) {
    json_ = MakeJson();
    json_ns_ = clock_->NowNs();
  }
  return json_;
}

std::string JobWatch::MakeJson() {
  JobDocument document(clock_->NowNs());
  for (const auto& [worker, look] : looks_) {
    document.AddWorker(worker, look.address, look.heard_ns, look.up_ms, look.error);
    for (const JobEdge& edge : look.edges) document.AddEdge(worker, edge);
    for (const JobStep& step : look.steps) document.AddStep(worker, step);
    if (!look.weights.empty()) document.AddWeights(worker, look.weights);
  }
  for (const MemberChange& change : changes_) document.AddChange(change);
  return std::move(document).Take();
}

}  // namespace tryst
