#ifndef TRYST_CHANNEL_POOL_PEER_PATHS_H_
#define TRYST_CHANNEL_POOL_PEER_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "channel/channel.h"
#include "channel/poller/poller.h"
#include "channel/pool/channel_pool_options.h"
#include "channel/pool/keys_out.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/transport.h"

namespace tryst {

// What the paths to all peers share; outlives them.
struct PathsContext {
  Poller* poller = nullptr;
  const ChannelPoolOptions* options = nullptr;
  std::vector<std::unique_ptr<Transport>> transports;  // The best first.
  // Transports that this system does not have, and why.
  std::vector<std::pair<std::string, absl::Status>> missing;
  std::mt19937_64 random;
};

// Chooses the path to one peer: the first transport that both ends have and that works. If the peer
// refuses a path, or the path stops working, all fetches that wait for it go to the next one. The
// path is tried again from time to time, and used again when it works.
//
// Poller thread only. REQUIRES at destruction: drained, or never asked for anything.
class PeerPaths final : private PollerTimer {
 public:
  PeerPaths(PathsContext* context, std::string worker);
  ~PeerPaths() override;

  const std::string& worker() const { return worker_; }

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn&& done);
  // As Channel::FetchMany().
  bool FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyDoneFn* done);
  // The channel whose Fetch() may be called at once, even inside a callback of another fetch. Null:
  // call Fetch() in a task of its own.
  Channel* InCallbacks();
  void AbortStep(int64_t step_id, const absl::Status& status);
  // The peer has said hello. If it has restarted, it may have other paths now.
  void NoteIncarnation(uint64_t incarnation);

  void Close(const absl::Status& why);
  bool Drained() const;

  // One line for each path, for people.
  std::string Explain() const;
  void View(std::vector<PathView>* views) const;
  void ListOps(LiveOps* ops) const;

 private:
  // The path by one transport.
  struct Path final : PathUser {
    enum class Standing {
      kGood,     // As far as is known.
      kRefused,  // The peer has no such path.
      kLeft,     // It stopped working.
    };
    bool HasAnother() const override { return peer->NextPath(index) != index; }
    bool HasForAnySize() const override;
    void OnRefused() override { peer->OnRefused(this); }
    void OnLeft(std::vector<WaitingFetch> fetches) override {
      peer->OnLeft(this, std::move(fetches));
    }
    void OnUsable() override { peer->OnUsable(this); }
    void OnTooLarge(std::vector<WaitingFetch> fetches) override {
      peer->OnTooLarge(this, std::move(fetches));
    }
    void OnNetworkChange() override { peer->RetryNow(); }

    PeerPaths* peer = nullptr;
    size_t index = 0;
    std::unique_ptr<Channel> channel;  // Null: not tried yet.
    int64_t made_ns = 0;
    Standing standing = Standing::kGood;
    std::string why;         // Why it is not good.
    int64_t since_ns = 0;    // Since when it is not good,
    int64_t probe_ns = 0;    // when it is tried again,
    int64_t pause_ms = 0;    // and the pause before that.
    uint64_t passed_on = 0;  // Fetches of tensors that are larger than its landing memory,
    size_t passed_to = 0;    // and the path that got them last.
  };
  using Standing = Path::Standing;

  const std::string& NameOf(const Path& path) const {
    return context_->transports[path.index]->name();
  }
  int64_t now_ns() const { return context_->poller->now_ns(); }
  Channel* ChannelOn(size_t path);
  size_t NextPath(size_t failed) const;
  size_t PathForAnySize(size_t path) const;
  size_t StepAside(Path* path, Standing standing, std::string why);
  bool HasLeft() const;
  size_t PathFor(int64_t step_id, const TensorKey& key) const;
  bool OthersOweEnds() const;
  void UsePath(size_t path);
  DoneFn Counted(const TensorKey& key, DoneFn done);
  void GoOn(std::vector<WaitingFetch> fetches, size_t path, bool counted);
  void OnRefused(Path* path);
  void OnLeft(Path* path, std::vector<WaitingFetch> fetches);
  void OnUsable(Path* path);
  void OnTooLarge(Path* path, std::vector<WaitingFetch> fetches);
  void NoteKeysBefore();
  void RetryNow();
  void ProbeLater(Path* path);
  void SetTimer();
  void OnTimer() override;
  PathView ViewOf(const Path& path) const;

  PathsContext* const context_;
  const std::string worker_;
  std::vector<Path> paths_;  // One for each transport.
  size_t current_ = 0;
  uint64_t incarnation_ = 0;           // From its last hello; 0: there was none.
  std::shared_ptr<KeysOut> keys_out_;  // Null: all fetches are on one path.
  int64_t keys_checked_ns_ = 0;
  int64_t counted_since_ns_ = 0;  // All that began since are in keys_out_.
  bool closed_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_PEER_PATHS_H_
