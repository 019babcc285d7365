#ifndef TRYST_CHANNEL_RDMA_RDMA_TRANSPORT_H_
#define TRYST_CHANNEL_RDMA_RDMA_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "channel/ops/session_transport.h"
#include "channel/rdma/fetch_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/rdma_options.h"
#include "channel/rdma/shared_nic.h"
#include "channel/transport.h"

namespace tryst {

// Peers that are reached by one NIC and one poller: its completion queue, and its part in what the
// pollers share of the NIC.
class RdmaTransport final : public SessionTransport, private SharedNic::User {
 public:
  RdmaTransport(const TransportContext& context, std::shared_ptr<SharedNic> nic,
                RdmaOptions options);
  ~RdmaTransport() override;

  const std::string& name() const override { return nic_->path().path; }
  absl::Status Open() override;
  void Maintain() override;
  void Close(const absl::Status& why) override;

  void AddCounters(Counters* counters) const override;
  // Adds the landing memory that our channels hold and wait for; returns the pool that it belongs
  // to.
  const LandingPool* AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const;

 private:
  // Posted many times, runs `run` once.
  struct RoomTask final : PollerTask {
    RoomTask(RdmaTransport* transport, void (RdmaTransport::*run)())
        : transport(transport), run(run) {}
    void Post();
    void RunOnPoller() override;
    RdmaTransport* const transport;
    void (RdmaTransport::*const run)();
    std::atomic<bool> posted{false};
  };
  void TellRoom() override { room_task_.Post(); }
  void TellWanted() override { wanted_task_.Post(); }
  void TellEvent(const NicEvent& event) override;
  void OnRoom();
  static RdmaFetchLink* LinkOf(const FetchSession* session) {
    return static_cast<RdmaFetchLink*>(session->link());
  }
  absl::StatusOr<absl::optional<std::string>> FarewellIn(const Hello& hello) const override;
  void DropStanding();
  void OnNicEvent(const NicEvent& event);

  // Constant after Open().
  const std::shared_ptr<SharedNic> nic_;
  RdmaOptions options_;
  std::unique_ptr<QueueHub> hub_;

  // Poller thread only.
  size_t room_first_ = 0;  // The channel that gets room first next time.
  RoomTask room_task_{this, &RdmaTransport::OnRoom};
  RoomTask wanted_task_{this, &RdmaTransport::DropStanding};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_RDMA_TRANSPORT_H_
