#ifndef TRYST_CHANNEL_POOL_CHANNEL_POOLS_H_
#define TRYST_CHANNEL_POOL_CHANNEL_POOLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "channel/bootstrap.h"
#include "channel/pool/channel_pool.h"
#include "channel/trace/counters.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "rendezvous/tensor_fetcher.h"

namespace tryst {

// The pools of a server, one on each of its pollers. The peer's name decides which poller has
// everything between us and that peer, in both directions and over all transports. So pollers share
// no channel, and all fetches of one key meet in one place, in their order
// (docs/decisions/0051-pollers.md).
//
// Thread-safe, but for construction, Open(), and destruction.
class ChannelPools final : public TensorFetcher, public HelloHandler {
 public:
  // REQUIRES: at least one; the first has place 0, the second place 1, and so on.
  explicit ChannelPools(std::vector<std::unique_ptr<ChannelPool>> pools);
  ~ChannelPools() override;

  // The poller, of so many, that has the peer. Consecutive tasks of a job are spread evenly.
  static size_t PlaceOf(absl::string_view worker, size_t pollers);

  // As those of ChannelPool, for all of them.
  absl::Status Open();
  void Close(const absl::Status& why);
  size_t Coming();  // A poller that is stuck counts as one tensor.
  absl::Status Stop(const absl::Status& why, absl::Duration timeout);
  // REQUIRES: the caller turns all pollers.
  bool Drained();

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override;
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn done) override;
  std::shared_ptr<Turns> TurnsFor(const TensorKey& key) override;
  void AbortStep(int64_t step_id, const absl::Status& status) override;
  void OnHello(const Hello& hello, HelloDone done) override;
  void RenewLinks(int64_t within_ms);  // ChannelPool::RenewLinks() of all.

  // ---- State ----
  // Each adds what the pollers that answer have to say, and returns the first failure. A stuck
  // poller does not hide the others.
  absl::Status ListOps(LiveOps* ops);
  absl::Status ViewPaths(const std::string& peer, std::vector<PathView>* views);
  absl::Status AskCounters(Counters* counters);
  std::vector<std::string> transport_names() const { return pools_[0]->transport_names(); }
  // REQUIRES: not in a callback of a poller.
  std::string Explain(const std::string& peer);
  // For a thread that turns all pollers.
  std::string ExplainNow(const std::string& peer) const;

  const std::vector<std::unique_ptr<ChannelPool>>& all() const { return pools_; }

 private:
  size_t PlaceOf(const TensorKey& key) const {
    return pools_.size() == 1 ? 0 : PlaceOf(key.src().worker, pools_.size());
  }
  void FetchApart(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                  ManyFetchedFn done);

  const std::vector<std::unique_ptr<ChannelPool>> pools_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_CHANNEL_POOLS_H_
