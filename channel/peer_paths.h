#ifndef TRYST_CHANNEL_PEER_PATHS_H_
#define TRYST_CHANNEL_PEER_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/channel_pool_options.h"
#include "channel/keys_out.h"
#include "channel/live_ops.h"
#include "channel/path_view.h"
#include "channel/poller.h"
#include "channel/rail.h"
#include "channel/rdma/fetch_channel.h"
#include "channel/shm/shm_path.h"

namespace tryst {

// Makes the channel to a peer that always works.
using FallbackFactory = std::function<std::unique_ptr<Channel>(const std::string& peer)>;

// What the paths to all peers share; outlives them.
struct PathsContext {
  Poller* poller = nullptr;
  Bootstrap* bootstrap = nullptr;
  const ChannelPoolOptions* options = nullptr;
  Rails rails;
  std::unique_ptr<ShmPath> shm;  // Null: there is none.
  absl::Status shm_status;       // Why, when it was wanted.
  FallbackFactory fallback;      // Null: there is none.
  std::mt19937_64 random;
};

// Which way to one peer: by shared memory; else by the first rail that both ends have; and
// in the last resort by the fallback. A way that the peer has not is never tried again; one
// that stops working is left for the next one, with all that was asked on it, and taken
// again when it works again.
//
// Poller thread only. REQUIRES at destruction: drained, or never asked for anything.
class PeerPaths final : private PollerTimer {
 public:
  PeerPaths(PathsContext* context, std::string worker);
  ~PeerPaths() override;

  const std::string& worker() const { return worker_; }

  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done);
  // The channel over shared memory for `key`, or, without one, for any; null: there is none.
  ShmFetchChannel* shm(const TensorKey* key);
  // Once a while: proves anew what was refused, as the reason may have passed.
  void MaintainShm();
  // The peer has said hello. One that was started anew may share memory now.
  void NoteIncarnation(uint64_t incarnation);
  void AbortStep(int64_t step_id, const absl::Status& status);
  // There is room for landing tensors: lets one fetch of each rail have some. Has one?
  bool TakeRoom();
  // Has a fetch of that rail found no room; what gives some of it up that nobody wants yet.
  bool WaitsForRoom(size_t rail) const;
  void DropOneStanding(size_t rail);
  // The network has changed: what waits to be tried again is tried now.
  void RetryNow();

  void Close(const absl::Status& why);
  bool Drained() const;

  // For people, a line for each way.
  std::string Explain() const;
  void View(std::vector<PathView>* views) const;
  void ListOps(LiveOps* ops) const;
  FetchCounters counters() const;
  ShmFetchCounters shm_counters() const;

 private:
  // By a rail, or by the fallback.
  struct Way {
    std::unique_ptr<FetchChannel> channel;  // Null: not tried yet, or the fallback.
    std::string refused;                    // The peer has no such path: why.
    std::string left;                       // It stopped working: why.
    int64_t left_ns = 0;
  };

  size_t fallback_way() const { return context_->rails.size(); }
  std::string WayName(size_t way) const;
  Channel* ChannelOn(size_t way);
  std::unique_ptr<FetchChannel> OpenWay(size_t way);
  size_t NextWay(size_t failed);
  bool HasLeft() const;
  void UseWay(size_t way);
  void FetchByWay(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done);
  void OnRefused(size_t way);
  void OnLeft(size_t way, std::vector<WaitingFetch> fetches);
  void OnUsable(size_t way);
  void OnShmRefused();
  void OnShmOpen();
  void ListElsewhere();
  void ProbeLater();
  void Probe();
  void OnTimer() override { Probe(); }
  const Channel* current_channel() const;
  PathView ViewShm() const;
  PathView ViewRail(size_t way) const;
  PathView ViewFallback() const;

  PathsContext* const context_;
  const std::string worker_;
  std::vector<Way> ways_;  // One for each rail, and one for the fallback.
  size_t current_ = 0;
  std::unique_ptr<Channel> fallback_;
  int64_t fallback_since_ns_ = 0;
  std::unique_ptr<ShmFetchChannel> shm_;  // In use unless it was refused.
  std::string shm_refusal_;
  int64_t shm_prove_ns_ = 0;  // When it is proved anew,
  int64_t shm_pause_ms_ = 0;  // and how long after the last time.
  uint64_t incarnation_ = 0;  // As it said in its last hello; 0: it has said none.
  // Since it was proved anew: what was out by then on another way stays there to its end.
  std::unique_ptr<absl::flat_hash_set<TensorKey>> out_elsewhere_;
  std::shared_ptr<KeysOut> keys_out_;  // Once a path was left; null: all fetches are on one.
  int64_t probe_ms_ = 0;
  bool closed_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_PEER_PATHS_H_
