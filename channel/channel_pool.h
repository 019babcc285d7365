#ifndef TRYST_CHANNEL_CHANNEL_POOL_H_
#define TRYST_CHANNEL_CHANNEL_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/bootstrap.h"
#include "channel/channel_pool_options.h"
#include "channel/consumers.h"
#include "channel/path_view.h"
#include "channel/peer_paths.h"
#include "channel/poller.h"
#include "channel/rail.h"
#include "rendezvous/tensor_fetcher.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// All that this worker's peers and it move between them: the paths to each peer, from when it
// is first asked for something (PeerPaths), and the peers that fetch from us, whose hellos it
// answers (Consumers), on one poller.
//
// Thread-safe, but for construction, Open(), and destruction.
class ChannelPool final : public TensorFetcher, public HelloHandler {
 public:
  // `source` is asked for what peers fetch from us. All pointers outlive the pool. `fallback`
  // may be null: then there is none.
  ChannelPool(Poller* poller, Bootstrap* bootstrap, TensorSource* source,
              std::vector<NicPath> paths, FallbackFactory fallback, ChannelPoolOptions options);
  ~ChannelPool() override;  // REQUIRES: drained, or never opened.

  // Opens the NICs' queues. Call before anything else, with the poller not yet started.
  absl::Status Open();

  // Ends everything with `why`; what comes later fails with it. Idempotent.
  void Close(const absl::Status& why);
  // REQUIRES: closed; on the poller thread. True once no NIC can touch memory for us.
  bool Drained();
  // Close(), and waits, on a thread other than the poller's, which must be running.
  // kDeadlineExceeded when something has not drained by then; it must not be destroyed.
  absl::Status Stop(const absl::Status& why, absl::Duration timeout);

  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) override;
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                 ManyDoneFn done) override;
  void AbortStep(int64_t step_id, const absl::Status& status) override;
  void CleanupStep(int64_t step_id) override;

  void OnHello(const Hello& hello, HelloDone done) override;

  // ---- What is going on; waits for the poller thread, which must be running, or is on it ----
  // Which path leads to `peer`, which were turned down, and why. All peers when empty.
  std::string Explain(const std::string& peer);
  FetchCounters fetch_counters();
  ServeCounters serve_counters();
  // What has not ended: the `most` oldest, and how many there are besides.
  // kDeadlineExceeded: the poller thread is stuck.
  struct Listed {
    std::vector<LiveOp> ops;
    size_t left_out = 0;
    int64_t now_ns = 0;
  };
  absl::StatusOr<Listed> ListOps(size_t most);
  // Every way to and from `peer`; of all peers when empty. kDeadlineExceeded as above.
  absl::StatusOr<std::vector<PathView>> ViewPaths(const std::string& peer);
  // The same for a caller that is on the poller thread.
  void ListOpsNow(LiveOps* ops) const;
  std::string ExplainNow(const std::string& peer) const;
  FetchCounters FetchCountersNow() const;
  ShmFetchCounters ShmFetchCountersNow() const;
  ShmServeCounters ShmServeCountersNow() const;
  // Of shared memory.
  ShmFetchCounters shm_fetch_counters();
  ShmServeCounters shm_serve_counters();
  // Bytes that peers may write, over all NICs: now, and the sum of the highest ever. Does
  // not wait.
  std::pair<uint64_t, uint64_t> PinnedBytes() const;

 private:
  class FetchTask;
  struct MaintenanceTimer final : PollerTimer {
    explicit MaintenanceTimer(ChannelPool* pool) : pool(pool) {}
    void OnTimer() override { pool->Maintain(); }
    ChannelPool* const pool;
  };
  struct RoomTask final : PollerTask {
    void RunOnPoller() override;
    ChannelPool* pool = nullptr;
    std::atomic<bool> posted{false};
  };

  absl::Status OpenRail(Rail* rail);

  // Poller thread.
  void StartFetch(FetchTask* task);
  void FetchNow(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done);
  PeerPaths* PeerOf(absl::string_view worker);
  // The shared memory by which all of `keys` come; null: not all, or otherwise.
  ShmFetchChannel* ShmForAll(absl::Span<const TensorKey> keys);
  void AnswerHello(const Hello& hello, HelloDone done);
  void OnRoom();
  void OnNicEvent(Rail* rail, const NicEvent& event);
  void Maintain();
  // Runs `fn` on the poller thread and waits for it, but not for ever.
  absl::Status AskPoller(absl::AnyInvocable<void() &&> fn);
  // The same, for ever.
  void RunOnPoller(absl::AnyInvocable<void() &&> fn);

  // Calls `fetch` for each key, and `done` once all of them have ended. Any thread.
  void FetchEach(absl::Span<const TensorKey> keys, ManyDoneFn done,
                 absl::FunctionRef<void(const TensorKey&, DoneFn)> fetch);
  FetchTask* TakeTask();
  void GiveTask(FetchTask* task);

  // Constant after Open().
  Poller* const poller_;
  TensorSource* const source_;
  const ChannelPoolOptions options_;
  PathsContext context_;
  bool open_ = false;

  Mutex mu_;
  std::vector<std::unique_ptr<FetchTask>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<FetchTask*> free_tasks_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> posted_fetches_{0};  // In the inbox, not started yet.

  // Poller thread only.
  absl::flat_hash_map<std::string, std::unique_ptr<PeerPaths>> peers_;
  std::vector<PeerPaths*> peers_in_order_;
  PeerPaths* last_peer_ = nullptr;  // Asked for last; peers stay.
  size_t room_first_ = 0;           // Who is asked first next time.
  std::unique_ptr<Consumers> consumers_;
  MaintenanceTimer maintenance_{this};
  RoomTask room_task_;
  bool closed_ = false;
  absl::Status close_status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_CHANNEL_POOL_H_
