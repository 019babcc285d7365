#ifndef TRYST_CHANNEL_RDMA_RDMA_TRANSPORT_H_
#define TRYST_CHANNEL_RDMA_RDMA_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "channel/rdma/consumers.h"
#include "channel/rdma/fetch_channel.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/rdma_options.h"
#include "channel/transport.h"
#include "verbs/async_event_thread.h"

namespace tryst {

// Peers that are reached by one NIC: its completion queue, the memory that tensors land in, and
// what it tells of its ports.
class RdmaTransport final : public Transport {
 public:
  RdmaTransport(const TransportContext& context, NicPath path, RdmaOptions options);
  ~RdmaTransport() override;

  const std::string& name() const override { return path_.path; }
  absl::Status Open() override;
  std::unique_ptr<Channel> MakeChannel(const std::string& peer, PathUser* user) override;
  void OnHello(const Hello& hello, HelloDone done) override;
  void NotePeer(const std::string& worker, uint64_t incarnation) override;
  void Maintain() override;
  void Close(const absl::Status& why) override;
  bool Drained() const override;

  void ExplainServing(const std::string& peer, std::string* out) const override;
  void View(const std::string& peer, std::vector<PathView>* views) const override;
  void ListOps(LiveOps* ops) const override;
  void AddCounters(Counters* counters) const override;
  FetchCounters fetch_counters() const;
  // Whether what the landing memory has lent is what the channels have of it.
  absl::Status AuditLandings() const;
  ServeCounters serve_counters() const { return consumers_.counters(); }

 private:
  struct RoomTask final : PollerTask {
    void RunOnPoller() override;
    RdmaTransport* transport = nullptr;
    std::atomic<bool> posted{false};
  };
  struct Fetching {
    FetchChannel* channel;
    PathUser* user;
  };

  void OnRoom();
  void OnNicEvent(const NicEvent& event);

  // Constant after Open().
  const TransportContext context_;
  const NicPath path_;
  const RdmaOptions options_;
  std::unique_ptr<QueueHub> hub_;
  std::shared_ptr<LandingPool> landings_;
  std::unique_ptr<AsyncEventThread> events_;  // Null where time is virtual.

  // Poller thread only.
  uint64_t seed_;
  std::vector<Fetching> fetching_;  // All there ever were; they outlive all but our destructor.
  size_t room_first_ = 0;           // Who is asked first next time.
  RoomTask room_task_;
  Consumers consumers_;
  bool closed_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_RDMA_TRANSPORT_H_
