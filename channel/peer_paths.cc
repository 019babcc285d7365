#include "channel/peer_paths.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "rendezvous/derived_status.h"

namespace tryst {

PeerPaths::PeerPaths(PathsContext* context, std::string worker)
    : context_(context), worker_(std::move(worker)), ways_(context->rails.size() + 1) {}

PeerPaths::~PeerPaths() { context_->poller->CancelTimer(this); }

// ---- Fetching ----

void PeerPaths::Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  if (ShmFetchChannel* channel = shm(&key)) {
    return channel->Fetch(step_id, key, args, std::move(done));
  }
  FetchByWay(step_id, key, args, std::move(done));
}

void PeerPaths::FetchByWay(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) {
  size_t way = current_;
  if (keys_out_ != nullptr && !HasLeft() && keys_out_->empty()) {
    keys_out_.reset();  // All is as if nothing had happened.
  }
  if (keys_out_ != nullptr) {
    way = keys_out_->Add(key, way);
    done = [out = keys_out_, key, done = std::move(done)](
               absl::Status status, const Args& send_args, const Args& recv_args, Tensor tensor,
               bool is_dead) mutable {
      out->Remove(key);
      std::move(done)(std::move(status), send_args, recv_args, std::move(tensor), is_dead);
    };
  }
  Channel* channel = ChannelOn(way);
  if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  FailReceive(absl::UnavailableError(absl::StrCat("no path leads to ", worker_, "; ", Explain())),
              args, std::move(done));
}

Channel* PeerPaths::ChannelOn(size_t way) {
  if (way == fallback_way()) {
    if (fallback_ == nullptr && context_->fallback) {
      fallback_ = context_->fallback(worker_);
      fallback_since_ns_ = context_->poller->now_ns();
    }
    return fallback_.get();
  }
  auto& channel = ways_[way].channel;
  if (channel == nullptr) channel = OpenWay(way);
  return channel.get();
}

std::unique_ptr<FetchChannel> PeerPaths::OpenWay(size_t way) {
  const ChannelPoolOptions& options = *context_->options;
  Rail* rail = context_->rails[way].get();
  FetchChannelOptions channel;
  channel.link = options.link;
  channel.link.digests &= rail->path.digests;
  channel.landing_bytes = options.landing_bytes;
  channel.path = rail->path.path;
  channel.self = options.self;
  channel.self_incarnation = options.incarnation;
  channel.peer = worker_;
  channel.on_refused = [this, way] { OnRefused(way); };
  if (context_->rails.size() > 1 || context_->fallback) channel.give_up_ms = options.give_up_ms;
  channel.on_left = [this, way](std::vector<WaitingFetch> fetches) {
    OnLeft(way, std::move(fetches));
  };
  channel.on_usable = [this, way] { OnUsable(way); };
  if (context_->fallback) {
    channel.on_too_large = [this](WaitingFetch fetch) {
      ChannelOn(fallback_way())->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    };
  }
  channel.trace = options.trace;
  channel.seed = context_->random();
  channel.heartbeat_ms = options.heartbeat_ms;
  channel.silence_ms = options.silence_ms;
  channel.retain_ms = options.retain_ms;
  channel.patience_ms = options.patience_ms;
  channel.max_parked = options.max_waiting;
  channel.standing = options.standing;
  channel.standing_ms = options.standing_ms;
  channel.protocol_newest = options.protocol_newest;
  return std::make_unique<FetchChannel>(rail->hub.get(), rail->landings.get(), context_->bootstrap,
                                        std::move(channel));
}

void PeerPaths::AbortStep(int64_t step_id, const absl::Status& status) {
  for (Way& way : ways_) {
    if (way.channel != nullptr) way.channel->AbortStep(step_id, status);
  }
  if (fallback_ != nullptr) fallback_->AbortStep(step_id, status);
  if (shm_ != nullptr) shm_->AbortStep(step_id, status);
}

bool PeerPaths::TakeRoom() {
  bool took = false;
  for (Way& way : ways_) {
    if (way.channel != nullptr) took |= way.channel->TakeRoom();
  }
  return took;
}

bool PeerPaths::WaitsForRoom(size_t rail) const {
  return ways_[rail].channel != nullptr && ways_[rail].channel->waits_for_room();
}

void PeerPaths::DropOneStanding(size_t rail) {
  if (ways_[rail].channel != nullptr) ways_[rail].channel->DropOneStanding();
}

// ---- From one way to another ----

// The best way but `failed` that is neither refused nor given up. Where there is none, the one
// that was given up first, which may work again: so all have their turns. Where there is no
// other at all, `failed`.
size_t PeerPaths::NextWay(size_t failed) {
  size_t next = failed;
  for (size_t way = 0; way < ways_.size(); ++way) {
    if (way == fallback_way() && !context_->fallback) break;
    if (way == failed || !ways_[way].refused.empty()) continue;
    if (ways_[way].left.empty()) return way;
    if (next == failed || ways_[way].left_ns < ways_[next].left_ns) next = way;
  }
  ways_[next].left.clear();
  return next;
}

bool PeerPaths::HasLeft() const {
  return std::any_of(ways_.begin(), ways_.end(), [](const Way& way) { return !way.left.empty(); });
}

void PeerPaths::UseWay(size_t way) {
  current_ = way;
  for (size_t at = 0; at < ways_.size(); ++at) {
    if (ways_[at].channel != nullptr) ways_[at].channel->AskAhead(at == way);
  }
}

// The peer has no such path: nothing was asked on it that another one could not be asked.
void PeerPaths::OnRefused(size_t way) {
  Way* refused = &ways_[way];
  if (!refused->refused.empty()) return;
  refused->refused = absl::StrCat(WayName(way), ": ", refused->channel->connect_status().message());
  const size_t next = NextWay(way);
  if (next == way) {
    refused->refused.clear();  // There is no other: it goes on trying.
    return;
  }
  TRYST_LOG(Info) << context_->options->self << " does not reach " << worker_ << " by "
                  << refused->refused;
  if (current_ != way) return;
  UseWay(next);
  if (keys_out_ != nullptr) keys_out_->Move(way, next);
  for (WaitingFetch& fetch : refused->channel->TakeWaiting()) {
    ChannelOn(next)->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
  }
}

// The path has stopped working: all that waited for it goes to the next one.
void PeerPaths::OnLeft(size_t way, std::vector<WaitingFetch> fetches) {
  Way* left = &ways_[way];
  left->left = std::string(left->channel->connect_status().message());
  left->left_ns = context_->poller->now_ns();
  const std::string why = left->left;
  const size_t next = NextWay(way);
  const bool tracked = keys_out_ != nullptr;
  if (tracked) keys_out_->Move(way, next);
  if (current_ == way) {
    UseWay(next);
    if (next != way) {
      TRYST_LOG(Warning) << context_->options->self << " goes on by " << WayName(next)
                         << " to reach " << worker_ << ", with " << fetches.size()
                         << " fetches, after " << WayName(way) << " failed: " << why;
    }
  }
  if (!tracked) keys_out_ = std::make_shared<KeysOut>();
  for (WaitingFetch& fetch : fetches) {
    if (tracked) {  // It has been counted.
      ChannelOn(next)->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    } else {
      FetchByWay(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    }
  }
  probe_ms_ = 0;
  if (next != way) ProbeLater();
}

void PeerPaths::OnUsable(size_t way) {
  if (ways_[way].left.empty()) return;
  const int64_t away_ms = (context_->poller->now_ns() - ways_[way].left_ns) / 1'000'000;
  ways_[way].left.clear();
  if (way >= current_) return;
  TRYST_LOG(Info) << context_->options->self << " goes back to " << WayName(way) << " to reach "
                  << worker_ << ", after " << away_ms << " ms by " << WayName(current_);
  UseWay(way);
}

void PeerPaths::ProbeLater() {
  if (closed_) return;
  const ChannelPoolOptions& options = *context_->options;
  probe_ms_ = probe_ms_ == 0 ? options.probe_ms : std::min(probe_ms_ * 2, options.probe_ms_most);
  // Between half of it and all of it: consumers do not come back all together.
  const int64_t half_ns = probe_ms_ * 500'000;
  const int64_t pause_ns =
      half_ns + static_cast<int64_t>(context_->random() % static_cast<uint64_t>(half_ns + 1));
  context_->poller->SetTimer(this, context_->poller->now_ns() + pause_ns);
}

void PeerPaths::Probe() {
  bool any = false;
  for (size_t way = 0; way < current_; ++way) {
    if (ways_[way].left.empty()) continue;
    any = true;
    ways_[way].channel->Probe();
  }
  if (any) ProbeLater();
}

void PeerPaths::RetryNow() {
  for (Way& way : ways_) {
    if (way.channel != nullptr) way.channel->RetryNow();
  }
  if (!is_set()) return;
  probe_ms_ = 0;
  Probe();
}

// ---- Ending ----

void PeerPaths::Close(const absl::Status& why) {
  closed_ = true;
  context_->poller->CancelTimer(this);
  for (Way& way : ways_) {
    if (way.channel != nullptr) way.channel->Close(why);
  }
  if (fallback_ != nullptr) fallback_->Close(why);
  if (shm_ != nullptr) shm_->Close(why);
}

bool PeerPaths::Drained() const {
  for (const Way& way : ways_) {
    if (way.channel != nullptr && !way.channel->Drained()) return false;
  }
  if (fallback_ != nullptr && !fallback_->Drained()) return false;
  return shm_ == nullptr || shm_->Drained();
}

}  // namespace tryst
