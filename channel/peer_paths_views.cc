// What PeerPaths tells about itself.
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/peer_paths.h"

namespace tryst {
namespace {

size_t UnderWay(const Channel& channel) {
  LiveOps ops(0);
  channel.ListOps(&ops);
  return ops.left_out();
}

}  // namespace

std::string PeerPaths::WayName(size_t way) const {
  return way == fallback_way() ? "the fallback" : context_->rails[way]->path.path;
}

const Channel* PeerPaths::current_channel() const {
  if (shm_ != nullptr && shm_refusal_.empty()) return shm_.get();
  if (current_ == fallback_way()) return fallback_.get();
  return ways_[current_].channel.get();
}

std::string PeerPaths::Explain() const {
  const Channel* current = current_channel();
  std::string out =
      current != nullptr ? current->Explain() : absl::StrCat(worker_, ": not asked yet");
  if (!context_->shm_status.ok()) {
    absl::StrAppend(&out, "\n  no shm here: ", context_->shm_status.message());
  }
  if (!shm_refusal_.empty()) absl::StrAppend(&out, "\n  turned down: ", shm_refusal_);
  for (size_t at = 0; at < ways_.size(); ++at) {
    const Way& way = ways_[at];
    if (!way.refused.empty()) absl::StrAppend(&out, "\n  turned down: ", way.refused);
    if (way.left.empty()) continue;
    absl::StrAppend(&out, "\n  left since ", (context_->poller->now_ns() - way.left_ns) / 1'000'000,
                    " ms: ", WayName(at), ": ", way.left, "; tried again every ", probe_ms_, " ms");
  }
  return out;
}

void PeerPaths::View(std::vector<PathView>* views) const {
  if (shm_ != nullptr) views->push_back(ViewShm());
  for (size_t way = 0; way < context_->rails.size(); ++way) views->push_back(ViewRail(way));
  if (fallback_ != nullptr || context_->fallback) views->push_back(ViewFallback());
}

PathView PeerPaths::ViewShm() const {
  const bool refused = !shm_refusal_.empty();
  PathView view;
  view.peer = worker_;
  view.path = "shm";
  view.in_use = !refused;
  view.state = refused ? "turned down" : shm_->state_text();
  view.since_ns = shm_->state_since_ns();
  view.why = refused ? shm_refusal_ : std::string(shm_->connect_status().message());
  view.epoch = shm_->epoch();
  view.under_way = UnderWay(*shm_);
  return view;
}

PathView PeerPaths::ViewRail(size_t at) const {
  const Way& way = ways_[at];
  PathView view;
  view.peer = worker_;
  view.path = WayName(at);
  if (way.channel == nullptr) {
    view.state = "not tried";
    if (at > current_ || current_channel() != nullptr) view.why = "a better one is in use";
    return view;
  }
  const FetchChannel& channel = *way.channel;
  view.in_use = current_channel() == &channel;
  view.since_ns = channel.state_since_ns();
  if (!way.refused.empty()) {
    view.state = "turned down";
    view.why = way.refused;
  } else if (!way.left.empty()) {
    view.state = "left";
    view.why = way.left;
    view.since_ns = way.left_ns;
  } else {
    view.state = channel.state_text();
    view.why = std::string(channel.connect_status().message());
  }
  view.epoch = channel.epoch();
  view.under_way = UnderWay(channel);
  return view;
}

PathView PeerPaths::ViewFallback() const {
  PathView view;
  view.peer = worker_;
  view.path = "grpc";
  view.in_use = fallback_ != nullptr && current_channel() == fallback_.get();
  view.state = view.in_use ? "in use" : fallback_ != nullptr ? "spare" : "not tried";
  view.why = "the last resort: a better one is in use";
  if (fallback_ != nullptr) {
    view.why = fallback_->Explain();
    view.since_ns = fallback_since_ns_;
    view.under_way = UnderWay(*fallback_);
  }
  return view;
}

void PeerPaths::ListOps(LiveOps* ops) const {
  for (const Way& way : ways_) {
    if (way.channel != nullptr) way.channel->ListOps(ops);
  }
  if (fallback_ != nullptr) fallback_->ListOps(ops);
  if (shm_ != nullptr) shm_->ListOps(ops);
}

FetchCounters PeerPaths::counters() const {
  FetchCounters sum;
  for (const Way& way : ways_) {
    if (way.channel != nullptr) sum += way.channel->counters();
  }
  return sum;
}

ShmFetchCounters PeerPaths::shm_counters() const {
  return shm_ != nullptr ? shm_->counters() : ShmFetchCounters();
}

}  // namespace tryst
