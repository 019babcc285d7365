#ifndef TRYST_CHANNEL_CHANNEL_POOL_H_
#define TRYST_CHANNEL_CHANNEL_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/path_view.h"
#include "channel/poller.h"
#include "channel/rdma/fetch_channel.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/queue_hub.h"
#include "channel/rdma/serve_channel.h"
#include "channel/shm/shm_path.h"
#include "channel/trace.h"
#include "rendezvous/tensor_fetcher.h"
#include "rendezvous/tensor_source.h"
#include "verbs/nic.h"

namespace tryst {

// A NIC that peers may be reached by.
struct NicPath {
  std::string path;  // "rdma/soft", "rdma/ibv": both ends must have one of that name.
  std::shared_ptr<Nic> nic;
  // Payloads carry a CRC-32C, as LinkOptions::digests says; false: never, because the link
  // has a checksum of its own on every hop and between its ends.
  bool digests = true;
};

struct ChannelPoolOptions {
  std::string self;          // "/job:worker/replica:0/task:1"
  uint64_t incarnation = 0;  // Not 0.
  LinkOptions link;
  uint64_t eager_bytes = 8192;
  uint64_t stripe_bytes = 1 << 20;
  uint64_t write_bytes = 16 << 20;
  uint64_t landing_bytes = 256 << 10;
  uint64_t landing_cap_bytes = 1 << 30;  // Per NIC.
  uint32_t completion_depth = 16384;     // Per NIC: bounds how many links it carries.
  uint32_t max_consumers = 4096;         // That may be connected to us.
  int64_t retain_ms = 60'000;
  uint32_t standing = 16;  // Standing receives from one peer: see Args::recurring.
  int64_t standing_ms = 30'000;
  uint32_t protocol_newest = kProtocolNewest;  // Less: as an older worker.
  int64_t heartbeat_ms = 250;
  int64_t silence_ms = 900;
  // How long a path may fail while its peer is up and somebody waits, before what waits goes
  // to the next one; and how often a path that was left is tried again, from least to most.
  int64_t give_up_ms = 2000;
  int64_t probe_ms = 1000;
  int64_t probe_ms_most = 30'000;
  uint64_t seed = 1;
  // Shared memory with workers of this host, before any NIC. Null: there is none.
  std::shared_ptr<Arena> shm_arena;
  ShmPathOptions shm;      // Its names, seed and trace are the pool's.
  Trace* trace = nullptr;  // Written on the poller thread; outlives the pool. May be null.
};

// Which way to which peer: opens a channel when a peer is first asked for something, by
// the first of its paths that both ends have, and moves on to the next when the peer
// says that it has no such path; the last resort is the fallback, which every peer has.
// A path that stops working is left for the next one, with all that was asked on it, and
// taken again when it works again. Answers the hellos of peers that fetch from us.
//
// Thread-safe, but for construction, Open(), and destruction.
class ChannelPool final : public TensorFetcher, public HelloHandler {
 public:
  // Makes the channel to a peer that always works. May be null: then there is none.
  using FallbackFactory = std::function<std::unique_ptr<Channel>(const std::string& peer)>;

  // `source` is asked for what peers fetch from us. All pointers outlive the pool.
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

  // ---- What is going on; waits for the poller thread, which must be running ----
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
  struct Rail;
  struct Way;
  struct Peer;
  class KeysOut;
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

  // Poller thread.
  void StartFetch(FetchTask* task);
  Peer* PeerOf(absl::string_view worker);
  Channel* ChannelOn(Peer* peer, size_t way);
  std::unique_ptr<FetchChannel> OpenWay(Peer* peer, size_t way);
  void FetchOn(Peer* peer, int64_t step_id, const TensorKey& key, const Args& args, DoneFn done);
  size_t NextWay(Peer* peer, size_t failed);
  static bool HasLeft(const Peer& peer);
  void OnRefused(Peer* peer, size_t way);
  void OnLeft(Peer* peer, size_t way, std::vector<WaitingFetch> fetches);
  void OnUsable(Peer* peer, size_t way);
  void UseWay(Peer* peer, size_t way);
  void ProbeLater(Peer* peer);
  void Probe(Peer* peer);
  // For `key`, or, without one, for any.
  ShmFetchChannel* ShmOf(Peer* peer, const TensorKey* key);
  void OnShmOpen(Peer* peer);
  void ListElsewhere(Peer* peer);
  void ProveShm();
  void NoteIncarnation(const std::string& worker, uint64_t incarnation);
  // The shared memory by which all of `keys` come; null: not all, or otherwise.
  ShmFetchChannel* ShmForAll(absl::Span<const TensorKey> keys);
  // There is no shared memory with it.
  void RerouteFromShm(Peer* peer);
  void RouteFetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done);
  void AnswerHello(const Hello& hello, HelloDone done);
  void AnswerFarewell(const Hello& hello, HelloDone done);
  void OnRoom();
  void OnNicEvent(Rail* rail, const NicEvent& event);
  void Maintain();
  std::string ExplainPeer(const Peer& peer) const;
  std::string WayName(size_t way) const;
  void ViewPeer(const Peer& peer, std::vector<PathView>* views) const;
  // Runs `fn` on the poller thread and waits for it, but not for ever.
  absl::Status AskPoller(absl::AnyInvocable<void() &&> fn);

  FetchTask* TakeTask();
  void GiveTask(FetchTask* task);

  // Constant after Open().
  Poller* const poller_;
  Bootstrap* const bootstrap_;
  TensorSource* const source_;
  const FallbackFactory fallback_;
  const ChannelPoolOptions options_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::unique_ptr<ShmPath> shm_;  // Null: there is none.
  absl::Status shm_status_;       // Why.
  bool open_ = false;

  Mutex mu_;
  std::vector<std::unique_ptr<FetchTask>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<FetchTask*> free_tasks_ ABSL_GUARDED_BY(mu_);

  // Poller thread only.
  absl::flat_hash_map<std::string, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> peers_in_order_;
  Peer* last_peer_ = nullptr;  // Asked for last; peers stay.
  size_t room_first_ = 0;      // Who is asked first next time.
  std::vector<std::unique_ptr<ServeChannel>> serving_;
  std::vector<std::unique_ptr<ServeChannel>> closing_;
  MaintenanceTimer maintenance_{this};
  RoomTask room_task_;
  std::mt19937_64 random_;
  uint64_t next_session_ = 0;
  bool closed_ = false;
  absl::Status close_status_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_CHANNEL_POOL_H_
