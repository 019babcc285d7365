#ifndef TRYST_SERVER_PAGE_JOB_WATCH_H_
#define TRYST_SERVER_PAGE_JOB_WATCH_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/trace/trace_dump.h"
#include "server/members/member.h"
#include "server/peer_client.h"

namespace tryst {

struct ExplainedPath;

// What travels from one worker to another, as the consumer reports it.
struct JobEdge {
  std::string producer;
  std::string path;  // Empty: no path is in use.
  std::string why;   // Why other paths are not in use, and what is wrong.
  bool bad = false;
  double megabytes_per_s = -1;  // -1: there was no second query yet.
  double operations_per_s = -1;
  double under_way = 0;
  double failed = 0;
  double p99_ms = 0;
  double awaited_ms_per_s = 0;  // How long its fetches waited for the producer's Send.
  std::string mostly;
};

// When a worker was at a step: from its first fetch's beginning to its last one's end, by our
// clock.
struct JobStep {
  int64_t step = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::string longest;       // What its longest wait was for.
  std::string longest_peer;  // Which peer that wait was for.
  int64_t longest_ns = 0;
};

// Asks every member of a job, each once in `every`, and keeps its last answer. Starts with the
// members that `client` knows, and learns of others from their answers. Its threads sleep in
// between.
class JobWatch {
 public:
  static constexpr size_t kMostWorkers = 4096;
  static constexpr size_t kMostStepsOfWorker = 40;
  static constexpr size_t kMostEdgesOfWorker = 4096;
  static constexpr size_t kMostWeightsBytes = 64 << 10;  // One worker may have so many.

  JobWatch(PeerClient* client, absl::Duration every, const Clock* clock);
  ~JobWatch();

  // The page's document. It is made at most twice a second, however often it is requested.
  std::string Json();
  // Asks a worker now: {"paths":...,"waiting":...}. Takes two seconds at most.
  std::string WorkerJson(const std::string& worker);
  // The traces, as text, of the operations of every member whose key contains `key`.
  std::string KeyText(const std::string& key);

 private:
  struct Totals {
    double done = 0, failed = 0, bytes = 0;
    std::map<std::string, double> waited_ms;
  };
  struct Look {
    std::string address;
    std::string incarnation;
    std::string error;     // Why the last query failed; empty: it answered.
    int64_t due_ns = 0;    // When it is asked next.
    int64_t heard_ns = 0;  // 0: never.
    double up_ms = 0;
    double steady_s = 0;  // Its CLOCK_MONOTONIC when it answered.
    bool busy = false;
    int64_t ahead_ns = 0;  // How far its clock is ahead of ours.
    std::string ahead_of;  // Which incarnation's clock that was.
    std::vector<JobEdge> edges;
    std::vector<JobStep> steps;
    std::string weights;                   // A JSON array; empty: it has no set of weights open.
    std::map<std::string, Totals> totals;  // By "peer path".
  };

  void Run();
  bool Next(std::string* worker, Look* look);
  absl::Status Ask(const std::string& worker, Look* look, std::vector<Member>* members,
                   std::vector<MemberChange>* changes);
  static void ReadEdges(const std::vector<ExplainedPath>& paths, double past_s, Look* look);
  static void AddRates(const Totals& before, const Totals& now, double past_s, JobEdge* edge);
  void ReadSteps(const TraceDump& dump, Look* look) const;
  void Meet(const std::vector<Member>& members) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Merge(const std::vector<MemberChange>& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string MakeJson() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  PeerClient* const client_;
  const absl::Duration every_;
  const Clock* const clock_;
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Look> looks_ ABSL_GUARDED_BY(mu_);
  std::deque<MemberChange> changes_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  std::string json_ ABSL_GUARDED_BY(mu_);
  int64_t json_ns_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_PAGE_JOB_WATCH_H_
