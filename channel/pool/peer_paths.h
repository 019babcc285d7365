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
#include "absl/strings/str_cat.h"
#include "channel/channel.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/link_kind.h"
#include "channel/poller/poller.h"
#include "channel/pool/channel_pool_options.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/path_view.h"
#include "channel/transport.h"

namespace tryst {

// What the paths to all peers share; outlives them.
struct PathsContext {
  Poller* poller = nullptr;
  const ChannelPoolOptions* options = nullptr;
  TransportContext common;                             // What every transport was made from.
  std::vector<std::unique_ptr<Transport>> transports;  // The best first.
  // Transports that this system does not have, and why.
  std::vector<std::pair<std::string, absl::Status>> missing;
  std::mt19937_64 random;
};

// Chooses the path to one peer: the first that both ends have and that works. One session has all
// fetches, whatever kind of link carries it. If the peer refuses a kind, or its links stop working,
// the session goes on by the next one; the better one is tried beside it from time to time, by a
// session that fetches nothing, and the session moves when that works.
//
// A transport that makes channels of its own stands outside of the session. Fetches go there while
// the peer was asked for nothing by the session, and come back when there is none out: so no two
// fetches of a key are ever out on different channels.
//
// Poller thread only. REQUIRES at destruction: drained, or never asked for anything.
class PeerPaths final : private PollerTimer, private KindChooser {
 public:
  PeerPaths(PathsContext* context, std::string worker);
  ~PeerPaths() override;

  const std::string& worker() const { return worker_; }

  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args, FetchedFn&& done);
  // As Channel::FetchMany().
  bool FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn* done);
  // The channel whose Fetch() may be called at once, even inside a callback of another fetch. Null:
  // call Fetch() in a task of its own.
  Channel* InCallbacks();
  void AbortStep(int64_t step_id, const absl::Status& status);
  // The peer has said hello. If it has restarted, it may have other paths now.
  void NoteIncarnation(uint64_t incarnation);
  // The network has changed for the better: what waits to be tried again is tried now.
  void RetryNow();
  // The session's link is made anew after a pause (FetchSession::Renew).
  void Renew(int64_t pause_ms);

  void Close(const absl::Status& why);
  bool Drained() const;

  // One line for each path, for people.
  std::string Explain() const;
  void View(std::vector<PathView>* views) const;
  void ListOps(LiveOps* ops) const;

 private:
  // The path by one transport.
  struct Path final : ChannelUser, KindChooser {
    enum class Standing {
      kGood,     // As far as is known.
      kRefused,  // The peer has no such path.
      kLeft,     // It stopped working.
    };
    // Its channel calls these,
    void OnRefused() override { peer->OnChannelRefused(this); }
    void OnUsable() override { peer->OnPathUsable(this); }
    // and its probe these. The probe stays as it is.
    size_t OnFailed(size_t kind, bool is_refused, const std::string& says) override {
      if (is_refused) why = absl::StrCat(peer->NameOf(*this), ": ", says);
      return kind;
    }
    void OnGivenUp(std::vector<WaitingFetch>) override {}

    PeerPaths* peer = nullptr;
    size_t index = 0;
    const FetchKind* kind = nullptr;      // Null: it has a channel of its own,
    std::unique_ptr<Channel> channel;     // this one, once it was tried.
    size_t kind_number = 0;               // Among the kinds of the session.
    std::unique_ptr<FetchSession> probe;  // Null: it never probed, or works.
    bool tried = false;
    Standing standing = Standing::kGood;
    std::string why;       // Why it is not good.
    int64_t since_ns = 0;  // Since when it is not good, or was first tried,
    int64_t probe_ns = 0;  // when it is tried again,
    int64_t pause_ms = 0;  // and the pause before that.
    int64_t back_ns = 0;   // When it last worked again; 0: it never did.
  };
  using Standing = Path::Standing;

  const std::string& NameOf(const Path& path) const {
    return context_->transports[path.index]->name();
  }
  int64_t now_ns() const { return context_->poller->now_ns(); }
  std::unique_ptr<FetchSession> NewSession(FetchSession::Kinds kinds, KindChooser* chooser);
  Channel* ChannelOn(size_t path);
  Channel* InUse() { return ChannelOn(current_); }
  void ComeBack();
  size_t NextPath(const Path& failed) const;
  void StepAside(Path* path, Standing standing, std::string why);
  void UsePath(size_t path);
  void GoOn(std::vector<WaitingFetch> fetches);
  // KindChooser, of the session.
  size_t OnFailed(size_t kind, bool is_refused, const std::string& why) override;
  void OnGivenUp(std::vector<WaitingFetch> fetches) override;
  void OnUsable() override {}
  void OnChannelRefused(Path* path);
  void OnPathUsable(Path* path);
  void Probe(Path* path);
  void EndProbes();
  static bool IsOver(const Path& path) {
    return path.probe != nullptr && path.standing == Standing::kGood;
  }
  void ProbeLater(Path* path);
  void SetTimer();
  void OnTimer() override;
  PathView ViewOf(const Path& path) const;

  PathsContext* const context_;
  const std::string worker_;
  std::vector<Path> paths_;                // One for each transport.
  std::unique_ptr<FetchSession> session_;  // Null: it was not needed yet.
  std::vector<size_t> path_of_kind_;       // By its kinds.
  size_t current_ = 0;
  size_t wanted_ = 0;         // Another than current_: it is used when nothing is out.
  bool hands_over_ = false;   // The session, to another channel: wanted_.
  uint64_t incarnation_ = 0;  // From its last hello; 0: there was none.
  std::vector<std::unique_ptr<FetchSession>> closing_;  // Probes that are over.
  bool closed_ = false;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_POOL_PEER_PATHS_H_
