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

// What all comms share; it outlives them.
struct Engine {
  Settings settings;
  PeerName self;
  SteadyClock clock;
  std::unique_ptr<PeerWatch> watch;
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<size_t> next_worker{0};  // Where the next comm begins to take workers.
};

class Comm;

// What NCCL holds for an operation that it has begun.
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

// One direction between two ranks: the lanes that carry its bytes, and the link that tells whether
// the peer lives. NCCL calls a comm from one thread at a time. That thread polls the first lane,
// and all lanes where there are no workers; otherwise workers poll the others.
class Comm : public LaneListener {
 public:
  Comm(Engine* engine, std::string device_name, std::vector<Rail*> rails, bool patient);
  ~Comm() override;

  // The steps of setting up, in this order. The lanes of workers open and connect on the workers'
  // threads, so each step is asked for until it is done.
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
  // A message in host memory up to this size is copied when it is posted. Valid after OpenLanes().
  uint32_t small_bytes() const { return small_bytes_; }
  static size_t LanesWanted(const Engine& engine, size_t rails, bool patient);

  // Polls the lanes of the comm's thread, on that thread.
  void Progress();
  // OK, or why the comm has failed, which was logged once. `wanting`: an operation waits for the
  // peer.
  absl::Status Health(bool wanting);
  void Fail(const absl::Status& why);

  virtual Result Test(Request* request, int* done, int* sizes) = 0;

  void OnLaneBroken(int lane, const std::string& why) override;
  void OnMoved() override {
    if (!moved_.load(std::memory_order_relaxed)) moved_.store(true, std::memory_order_relaxed);
  }

 protected:
  // Derived classes call it first in their destructors, because lanes call them.
  void CloseLanes();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Result FailureResult() const;
  Lane* first_lane() { return lanes_[0].get(); }
  // Offers a message to lanes, beginning with the lane after the last message's.
  void Offer(PieceSource* source);
  void CutIntoPieces(PieceSource* source) const;
  // The probe of one lane has arrived. Called on that lane's thread.
  void CountProven() { proven_.fetch_add(1); }
  void AnswerProbe(int lane) { lanes_[static_cast<size_t>(lane)]->Probe(); }
  std::string PeerText() const;

  Engine* const engine_;

 private:
  Worker* WorkerOf(size_t lane) const;
  // Workers carry all but small messages, because this thread serves all of NCCL's connections.
  bool WorkersCarry() const { return patient_ && !engine_->workers.empty() && lanes_.size() > 1; }
  bool OfferInTurn(PieceSource* source, uint32_t turn);
  bool OfferToWorkers(PieceSource* source, uint32_t turn);
  void OpenLane(size_t index, CompletionQueue* completions);
  absl::StatusOr<CompletionQueue*> QueueFor(size_t lane);
  void BreakLanes();
  bool WaitedEnough(PeerLink::State state);

  const std::string device_name_;
  const std::vector<Rail*> rails_;
  const bool patient_;  // Whether the NIC is in software.
  // Comms take different first workers, so that both directions of a ring have workers.
  size_t first_worker_ = 0;
  std::vector<std::unique_ptr<CompletionQueue>> queues_;  // This thread's queue for each rail.
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::string> addresses_;
  std::shared_ptr<PeerLink> link_;
  uint64_t most_piece_bytes_ = kMaxMessageBytes;  // The most that every rail takes in one work.
  uint32_t small_bytes_ = 0;
  size_t next_lane_ = 0;
  // How long it has waited in vain since there was trouble, and when it looked last; -1: never.
  int64_t waited_ns_ = 0;
  int64_t looked_ns_ = -1;
  bool all_ended_ = false;  // All lanes had, at the last look.
  bool lanes_stopped_ = false;

  std::atomic<size_t> pending_{0};
  std::atomic<size_t> proven_{0};
  std::atomic<size_t> broken_lanes_{0};
  std::atomic<bool> moved_{false};  // Since the last look.
  std::atomic<bool> failed_{false};
  mutable Mutex mu_;
  std::string broken_why_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_COMM_H_
