// Shared memory among PeerPaths' ways.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/peer_paths.h"

namespace tryst {

ShmFetchChannel* PeerPaths::shm(const TensorKey* key) {
  if (context_->shm == nullptr || !shm_refusal_.empty()) return nullptr;
  if (shm_ == nullptr) {
    shm_ = context_->shm->MakeFetchChannel(
        worker_, [this] { OnShmRefused(); }, [this] { OnShmOpen(); });
  }
  if (out_elsewhere_ != nullptr && (key == nullptr || out_elsewhere_->contains(*key))) {
    return nullptr;
  }
  return shm_.get();
}

void PeerPaths::OnShmRefused() {
  const ChannelPoolOptions& options = *context_->options;
  if (context_->rails.empty() && !context_->fallback) return;  // It goes on trying.
  // What the reason was may pass: a peer that is configured anew, a container that shares its
  // host's namespace from now on.
  shm_pause_ms_ =
      shm_pause_ms_ == 0 ? options.probe_ms : std::min(shm_pause_ms_ * 2, options.probe_ms_most);
  shm_prove_ns_ = context_->poller->now_ns() + shm_pause_ms_ * 1'000'000;
  const std::string refusal = absl::StrCat("shm: ", shm_->connect_status().message());
  if (shm_refusal_ != refusal) {
    TRYST_LOG(Info) << options.self << " does not reach " << worker_ << " by " << refusal;
  }
  shm_refusal_ = refusal;
  for (WaitingFetch& fetch : shm_->TakeWaiting()) {
    FetchByWay(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
  }
}

// Fetches of a key that are out on another way must meet its sends before those that come: the
// key follows when they have ended.
void PeerPaths::OnShmOpen() {
  if (shm_refusal_.empty()) return;
  TRYST_LOG(Info) << context_->options->self << " reaches " << worker_
                  << " by shm after all; before, " << shm_refusal_;
  shm_refusal_.clear();
  shm_pause_ms_ = 0;
  out_elsewhere_ = std::make_unique<absl::flat_hash_set<TensorKey>>();
  ListElsewhere();
}

void PeerPaths::ListElsewhere() {
  LiveOps out(std::numeric_limits<size_t>::max());
  for (const Way& way : ways_) {
    if (way.channel != nullptr) way.channel->ListOps(&out);
  }
  if (fallback_ != nullptr) fallback_->ListOps(&out);
  out_elsewhere_->clear();
  for (const LiveOp& op : out.Take()) out_elsewhere_->insert(op.key);
  if (out_elsewhere_->empty()) out_elsewhere_.reset();
}

void PeerPaths::MaintainShm() {
  if (out_elsewhere_ != nullptr) ListElsewhere();
  if (!shm_refusal_.empty() && context_->poller->now_ns() >= shm_prove_ns_) shm_->Prove();
}

void PeerPaths::NoteIncarnation(uint64_t incarnation) {
  if (std::exchange(incarnation_, incarnation) == incarnation) return;
  shm_pause_ms_ = 0;
  shm_prove_ns_ = 0;
}

}  // namespace tryst
