#ifndef TRYST_SERVER_STATUS_INSIGHT_H_
#define TRYST_SERVER_STATUS_INSIGHT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "channel/pool/channel_pools.h"
#include "channel/trace/trace_dump.h"
#include "rendezvous/step_registry.h"
#include "server/listener/connection_table.h"
#include "server/members/membership.h"
#include "server/regions/grant_table.h"
#include "server/status/weight_views.h"

namespace tryst {

// Shows the state of a worker as text, as JSON and as metrics. No call waits long for a thread that
// is stuck. Thread-safe; the parts that it reads from outlive it.
class Insight {
 public:
  struct Parts {
    std::string worker;
    uint64_t incarnation = 0;
    std::function<std::string()> address;
    std::string protocol;
    std::string encryption;    // What is encrypted, for people.
    bool encrypt_off = false;  // Tensors leave in the clear although peers prove who they are.
    const Clock* clock = nullptr;
    StepRegistry* steps = nullptr;
    ChannelPools* pools = nullptr;
    Membership* members = nullptr;
    const WeightViews* weights = nullptr;
    const GrantTable* grants = nullptr;
    std::vector<const Trace*> traces;
    // Where the list of members comes from, and how old it is: JSON, or a line of text. May be
    // empty.
    std::function<std::string(bool json)> look_at_membership;
    // How device tensors travel, and their counters. May be empty. Must not wait long, as no call
    // here does.
    std::function<std::string()> explain_devices;
    std::function<void(std::map<std::string, int64_t>*)> add_device_stats;
    std::function<ConnectionCounts()> connections;  // Connections to the gRPC server; may be empty.
  };
  explicit Insight(Parts parts) : parts_(std::move(parts)), started_ns_(parts_.clock->NowNs()) {}

  // What waits, for what and since when, in the rendezvous and between peers. Step -1: every step.
  std::string WaitingText(int64_t step) const;
  std::string WaitingJson(int64_t step) const;
  // Which paths are in use, which are not and why, since when, and how well they work. An empty
  // `peer`: all peers.
  std::string PathsText(const std::string& peer) const;
  std::string PathsJson(const std::string& peer) const;
  // `trouble` says why some are missing.
  std::vector<PathView> Paths(const std::string& peer, std::string* trouble) const;
  TraceDump Dump(const TraceFilter& filter) const;
  std::map<std::string, int64_t> Stats() const;
  // Prometheus's text format, version 0.0.4.
  std::string Metrics() const;

  const Parts& parts() const { return parts_; }

 private:
  struct Listed {
    std::vector<LiveOp> ops;
    size_t left_out = 0;
    std::string trouble;  // Why some are missing.
  };
  Listed ListOps(int64_t step) const;
  TraceTrack::Counts CountsOf(const PathView& path) const;
  std::string PollersText() const;
  std::string MembersJson() const;
  Counters AllCounters() const;

  const Parts parts_;
  const int64_t started_ns_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_STATUS_INSIGHT_H_
