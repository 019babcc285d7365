#include "tests/contract/pool_audit.h"

#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "channel/ops/verify_traces.h"
#include "channel/rdma/landing_pool.h"
#include "channel/trace/trace_dump.h"
#include "tests/process/pair/pool_counters.h"

namespace tryst {
namespace {

struct Counts {
  FetchCounters rdma_fetched, shm_fetched;
  ServeCounters rdma_served, shm_served;
};

Counts CountsOf(const AuditedWorker& worker) {
  Counts counts;
  for (const auto& pool : worker.pools->all()) {
    counts.rdma_fetched += Ask(pool.get(), &RdmaFetched);
    counts.shm_fetched += Ask(pool.get(), &ShmFetched);
    counts.rdma_served += Ask(pool.get(), &RdmaServed);
    counts.shm_served += Ask(pool.get(), &ShmServed);
  }
  return counts;
}

std::vector<LiveOp> LiveOpsOf(const AuditedWorker& worker) {
  LiveOps ops(std::numeric_limits<size_t>::max());
  for (const auto& pool : worker.pools->all()) {
    pool->poller()->RunAndWait([&] { pool->ListOpsNow(&ops); });
  }
  return ops.Take();
}

// Neither more nor less is lent than the channels know of.
std::string LandingsOf(const AuditedWorker& worker) {
  LandingBytes known;
  for (const auto& pool : worker.pools->all()) {
    pool->poller()->RunAndWait([&] { AddLandings(*pool, &known); });
  }
  for (const auto& [landings, bytes] : known) {
    if (bytes.first == landings->in_use_bytes() && bytes.second == landings->waiting_bytes()) {
      continue;
    }
    return absl::StrCat(worker.name, " has ", landings->in_use_bytes(),
                        " bytes of landings in use and lends ", landings->waiting_bytes(),
                        " to who waits; its channels know of ", bytes.first, " and ", bytes.second);
  }
  return "";
}

std::string Kept(const AuditedWorker& consumer, const AuditedWorker& producer, bool untroubled) {
  bool ahead = false;  // A standing receive is out at both ends as long as it may be claimed.
  for (const AuditedWorker* worker : {&consumer, &producer}) {
    for (const LiveOp& op : LiveOpsOf(*worker)) {
      ahead |= absl::StrContains(op.detail, "ahead of its fetch");
      // What was accepted over a link that broke then is kept until the consumer comes again.
      if (ahead || (!untroubled && worker == &producer)) continue;
      return absl::StrCat(worker->name, " keeps an operation of step ", op.step, ", ",
                          op.key.text(), ": ", WaitsForText(op.span.waits_for()), " ", op.detail);
    }
    std::string landings = LandingsOf(*worker);
    if (!landings.empty()) return landings;
  }
  const std::string serves = producer.pools->Explain("");
  constexpr char kHolds[] = ", holds ";
  for (size_t at = serves.find(kHolds); at != std::string::npos; at = serves.find(kHolds, at + 1)) {
    if (serves.compare(at, 52, ", holds 0 tensors by reference, 0 bytes copied for i") != 0) {
      return absl::StrCat(producer.name, " keeps what was given back: ", serves.substr(at, 60));
    }
  }
  return "";
}

std::string NotAlike(const char* path, const FetchCounters& fetched, const ServeCounters& served) {
  const std::pair<const char*, uint64_t> none[] = {
      {"breaks", fetched.breaks},    {"replays", fetched.replays},
      {"ghosts", fetched.ghosts},    {"wrong digests", fetched.digests_wrong},
      {"sent again", served.resent},
  };
  for (const auto& [what, count] : none) {
    if (count != 0) return absl::StrCat(path, ": ", count, " ", what, " where nothing went wrong");
  }
  if (fetched.fetches != fetched.ended_ok + fetched.ended_failed + fetched.moved) {
    return absl::StrCat(path, ": of ", fetched.fetches, " fetches ", fetched.ended_ok, " and ",
                        fetched.ended_failed, " have ended");
  }
  // What was sent for a fetch that ends early is counted at one end alone.
  if (fetched.ended_failed != 0 || fetched.standing_dropped != 0) return "";
  const std::tuple<const char*, uint64_t, uint64_t> both[] = {
      {"bytes", fetched.bytes, served.bytes},
      {"parked", fetched.parked, served.parked},
      {"pulled", fetched.pulled, served.pulled},
      {"in parts", fetched.in_parts, served.in_parts},
      {"by reference", fetched.by_reference + fetched.copied, served.by_reference + served.staged},
      {"cancels", fetched.cancels_sent, served.cancelled},
      {"given back", 0, served.given_back},
  };
  for (const auto& [what, ours, theirs] : both) {
    if (ours != theirs) {
      return absl::StrCat(path, ": ", what, ": the consumer counts ", ours, ", and the producer ",
                          theirs);
    }
  }
  return "";
}

TraceDump DumpOf(const AuditedWorker& worker) {
  TraceFilter all;
  all.most = std::numeric_limits<size_t>::max();
  TraceDump dump;
  dump.worker = worker.name;
  dump.incarnation = worker.incarnation;
  dump.now_ns = worker.pools->all()[0]->poller()->clock().NowNs();
  for (const Trace* trace : worker.traces) AddRecords(*trace, all, &dump);
  AddLiveOps(LiveOpsOf(worker), all, &dump);
  FinishDump(all, &dump);
  return dump;
}

// Each tensor that was copied or read was traced to wait for that.
std::string NotTraced(const TraceDump& dump, const FetchCounters& fetched) {
  if (dump.counts.overwritten > 0 || fetched.ended_failed > 0) return "";
  uint64_t copies = 0;
  for (const TraceRecord& record : dump.records) {
    for (size_t i = 0; i < record.span.count(); ++i) {
      copies += record.span.stamp(i).what == WaitsFor::kCopy;
    }
  }
  if (copies == fetched.copied + fetched.pulled) return "";
  return absl::StrCat(copies, " of ", fetched.copied + fetched.pulled,
                      " tensors were traced while they were copied");
}

}  // namespace

std::string Audit(const AuditedWorker& consumer, const AuditedWorker& producer, bool untroubled) {
  std::string kept = Kept(consumer, producer, untroubled);
  if (!kept.empty() || !untroubled) return kept;
  const Counts fetched = CountsOf(consumer);
  const Counts served = CountsOf(producer);
  std::string wrong = NotAlike("rdma", fetched.rdma_fetched, served.rdma_served);
  if (wrong.empty()) wrong = NotAlike("shm", fetched.shm_fetched, served.shm_served);
  if (!wrong.empty()) return wrong;
  if (consumer.traces.empty()) return "";
  const TraceDump dumps[] = {DumpOf(consumer), DumpOf(producer)};
  for (const TraceBreach& breach : VerifyTraces(dumps).breaches) return breach.what;
  return NotTraced(dumps[0], fetched.shm_fetched);
}

}  // namespace tryst
