#ifndef TRYST_CHANNEL_POOL_CHANNEL_POOL_H_
#define TRYST_CHANNEL_POOL_CHANNEL_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/bootstrap.h"
#include "channel/ops/consumers.h"
#include "channel/poller/poller.h"
#include "channel/pool/channel_pool_options.h"
#include "channel/pool/peer_paths.h"
#include "channel/trace/counters.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/transport.h"
#include "rendezvous/tensor_fetcher.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// Chooses a path to each peer (PeerPaths) and hands the hellos of peers to the transport that they
// name, on one poller. It knows transports by their interface alone, and has the sessions of the
// peers that fetch from us, whatever kind of link carries them.
//
// Thread-safe, but for construction, Open(), and destruction.
class ChannelPool final : public TensorFetcher, public HelloHandler {
 public:
  // Peers fetch our tensors from `source`. All pointers outlive the pool. `transports`: the best
  // first.
  ChannelPool(Poller* poller, Bootstrap* bootstrap, TensorSource* source,
              const std::vector<TransportFactory>& transports, ChannelPoolOptions options);
  ~ChannelPool() override;  // REQUIRES: drained, or never opened.

  // Opens the transports. Call before anything else, with the poller not yet started.
  absl::Status Open();

  // How many tensors are on their way to peers, which Close() would cut off. kDeadlineExceeded: the
  // poller thread is stuck. Any thread; the poller must be running.
  absl::StatusOr<size_t> Coming();
  // Ends every fetch with `why`; later ones fail with it. Idempotent.
  void Close(const absl::Status& why);
  // Whether it is closed and nothing can write memory for us any more. REQUIRES: on the poller
  // thread.
  bool Drained();
  // Calls Close() and waits, on a thread other than the poller's, which must be running.
  // kDeadlineExceeded: something has not drained by then, and the pool must not be destroyed.
  absl::Status Stop(const absl::Status& why, absl::Duration timeout);

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override;
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn done) override;
  void AbortStep(int64_t step_id, const absl::Status& status) override;

  void OnHello(const Hello& hello, HelloDone done) override;
  // What proves who we are has changed: every peer gets a new hello, at some time within
  // `within_ms`, and is fetched from over the link that this one opens. Any thread.
  void RenewLinks(int64_t within_ms);

  // ---- State. The poller thread must be running, or be the caller. ----
  // Which path leads to `peer`, which paths were refused, and why. For all peers if `peer` is
  // empty. Waits for the poller thread.
  std::string Explain(const std::string& peer);
  // Adds the operations that have not ended. kDeadlineExceeded: the poller thread is stuck.
  absl::Status ListOps(LiveOps* ops);
  // Every path to and from `peer`; of all peers if `peer` is empty. kDeadlineExceeded as above.
  absl::StatusOr<std::vector<PathView>> ViewPaths(const std::string& peer);
  // Adds the counters of all transports. kDeadlineExceeded as above.
  absl::Status AskCounters(Counters* counters);
  // Until a turn has run what was posted before.
  absl::Status AwaitTurn() {
    return AskPoller([] {});
  }
  // The names of the transports, in the order in which they are tried.
  std::vector<std::string> transport_names() const;

  // ListOps() for a caller on the poller thread.
  void ListOpsNow(LiveOps* ops) const;
  std::string ExplainNow(const std::string& peer) const;
  void AddCountersNow(Counters* counters) const;
  // Those that this system has, the best first.
  const std::vector<std::unique_ptr<Transport>>& transports() const { return context_.transports; }
  Poller* poller() const { return poller_; }

 private:
  class FetchTask;
  struct MaintenanceTimer final : PollerTimer {
    explicit MaintenanceTimer(ChannelPool* pool) : pool(pool) {}
    void OnTimer() override { pool->Maintain(); }
    ChannelPool* const pool;
  };

  // Whether the inbox has no task that must run before a fetch made on the poller thread.
  bool MayStartNow() const;
  // Poller thread.
  void StartFetch(FetchTask* task);
  void FetchNow(int64_t step_id, const TensorKey& key, const RecvArgs& args, FetchedFn&& done);
  PeerPaths* PeerOf(const TensorKey& key);
  // Fetches all `keys` as one, if they belong to one peer whose channel can do that. False: nothing
  // was started.
  bool FetchAsOne(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                  ManyFetchedFn* done);
  void AnswerHello(const Hello& hello, HelloDone done);
  Transport* FindTransport(absl::string_view name) const;  // Null: there is none.
  void Maintain();
  void StartMaintenance();
  // False: it is from a process that another has taken the place of.
  bool HearLife(const Hello& hello);
  // Runs `fn` on the poller thread and waits for it, up to a limit.
  absl::Status AskPoller(absl::AnyInvocable<void() &&> fn);

  // Calls `fetch` `count` times, and `done` once all of them have ended. Any thread.
  void FetchEach(size_t count, ManyFetchedFn done,
                 absl::FunctionRef<void(size_t, FetchedFn)> fetch);
  FetchTask* TakeTask();
  void GiveTask(FetchTask* task);

  // Constant after Open().
  Poller* const poller_;
  const ChannelPoolOptions options_;
  PathsContext context_;
  std::unique_ptr<Consumers> consumers_;  // Destroyed before the transports.
  bool open_ = false;

  Mutex mu_;
  std::vector<std::unique_ptr<FetchTask>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<FetchTask*> free_tasks_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> posted_fetches_{0};  // In the inbox, not started yet.
  std::atomic<size_t> posted_aborts_{0};
  std::atomic<bool> asked_{false};  // A fetch was made since the start.

  // Poller thread only.
  absl::flat_hash_map<std::string, std::unique_ptr<PeerPaths>> peers_;
  std::vector<PeerPaths*> peers_in_order_;
  PeerPaths* last_peer_ = nullptr;  // The peer of the last fetch. Peers are never removed.
  struct PeerLife {
    uint64_t incarnation = 0;
    int64_t started_us = 0;  // As its hello says.
    int64_t since_ns = 0;    // When it was first heard, and last.
    int64_t heard_ns = 0;
  };
  // The last life of each worker that has said hello, of kMostLives at most.
  absl::flat_hash_map<std::string, PeerLife> lives_;
  MaintenanceTimer maintenance_{this};
  bool maintained_ = false;
  bool closed_ = false;
  absl::Status close_status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_CHANNEL_POOL_H_
