#ifndef TRYST_PLUGINS_NCCL_COMM_H_
#define TRYST_PLUGINS_NCCL_COMM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "plugins/nccl/abi.h"
#include "plugins/nccl/devices.h"
#include "plugins/nccl/lane.h"
#include "plugins/nccl/memory.h"
#include "plugins/nccl/peer_watch.h"
#include "plugins/nccl/settings.h"
#include "plugins/nccl/wire.h"
#include "plugins/nccl/worker.h"

namespace tryst::nccl {

// What comms share; outlives them.
struct Engine {
  Settings settings;
  PeerName self;
  SteadyClock clock;
  std::unique_ptr<PeerWatch> watch;
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<size_t> next_worker{0};  // The first one of the next comm.
};

class Comm;

// What NCCL holds of an operation that it has begun.
struct Request {
  Comm* comm = nullptr;
  uint32_t index = 0;
  bool flush = false;
};

// Registered memory of a comm's own, which the peer may write.
class Arena {
 public:
  static absl::StatusOr<std::unique_ptr<Arena>> Make(Nic* nic, uint64_t bytes);
  ~Arena();
  uint8_t* data() { return data_; }
  const Region& region() const { return *region_; }

 private:
  Arena() = default;
  uint8_t* data_ = nullptr;
  std::unique_ptr<Region> region_;
};

// One direction between two ranks: the lanes that carry it and the link that says whether
// the peer lives. NCCL calls a comm from one thread at a time, which polls the first lanes;
// the others are polled by workers.
class Comm : public LaneListener {
 public:
  Comm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient);
  ~Comm() override;

  // Setting up, in this order. The lanes of workers open and connect on their threads, so
  // each step is asked for again until it is done.
  void OpenLanes(size_t count);
  bool LanesOpen() const { return pending_.load() == 0; }
  std::vector<std::string> LaneAddresses() const { return addresses_; }
  void ConnectLanes(const std::vector<std::string>& addresses, const std::vector<uint8_t>& rails,
                    bool probe);
  bool LanesProven() const { return pending_.load() == 0 && proven_.load() >= lanes_.size(); }
  void Watch(Fd socket, const PeerName& peer);

  const std::vector<Rail*>& rails() const { return rails_; }
  const std::string& device_name() const { return device_name_; }
  size_t lanes() const { return lanes_.size(); }
  // A message of up to so much in host memory is taken when it is posted. After OpenLanes().
  uint32_t small_bytes() const { return small_bytes_; }
  static size_t LanesWanted(const Engine& engine, size_t rails, bool patient);

  // Polls the lanes that are this thread's. The comm's thread.
  void Progress();
  // OK, or why nothing more will come of this comm: said once by the log. `wanting`:
  // something waits for the peer.
  absl::Status Health(bool wanting);
  void Fail(const absl::Status& why);

  virtual Result Test(Request* request, int* done, int* sizes) = 0;

  void OnLaneBroken(int lane, const std::string& why) override;

 protected:
  // To be called first by the destructors of those who hear of lanes.
  void CloseLanes();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Result FailureResult() const;
  Lane* first_lane() { return lanes_[0].get(); }
  // Hands a message to lanes, beginning with the one after the last message's.
  void Offer(PieceSource* source);
  void CutIntoPieces(PieceSource* source) const;
  // The probe of `lane` has come; the lane's thread.
  void CountProven() { proven_.fetch_add(1); }
  void AnswerProbe(int lane) { lanes_[static_cast<size_t>(lane)]->Probe(); }
  std::string PeerText() const;

  Engine* const engine_;

 private:
  Worker* WorkerOf(size_t lane) const;
  // All but small messages: this thread has all of NCCL's connections to look after.
  bool WorkersCarry() const { return patient_ && !engine_->workers.empty() && lanes_.size() > 1; }
  bool OfferInTurn(PieceSource* source, uint32_t turn);
  bool OfferToWorkers(PieceSource* source, uint32_t turn);
  void OpenLane(size_t index, CompletionQueue* completions);
  absl::StatusOr<CompletionQueue*> QueueFor(size_t lane);
  void BreakLanes();

  const std::string device_name_;
  const std::vector<Rail*> rails_;
  const bool patient_;  // The NIC is in software.
  // Comms share the workers out among themselves, so that both directions of a ring have some.
  size_t first_worker_ = 0;
  std::vector<std::unique_ptr<CompletionQueue>> queues_;  // Of each rail: this thread's.
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::string> addresses_;
  std::shared_ptr<PeerLink> link_;
  uint64_t most_piece_bytes_ = kMaxMessageBytes;  // That each rail takes.
  uint32_t small_bytes_ = 0;
  size_t next_lane_ = 0;
  int64_t trouble_since_ns_ = -1;
  bool lanes_stopped_ = false;

  std::atomic<size_t> pending_{0};
  std::atomic<size_t> proven_{0};
  std::atomic<bool> lane_broken_{false};
  std::atomic<bool> failed_{false};
  mutable Mutex mu_;
  std::string broken_why_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_COMM_H_
