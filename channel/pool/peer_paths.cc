#include "channel/pool/peer_paths.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/reached.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

// Between two checks of the fetches that were out before.
constexpr int64_t kKeysNs = 1'000'000'000;

std::string WhyOf(const Channel& channel) {
  PathView view;
  channel.View(&view);
  return view.state.empty() ? channel.Explain() : view.why;
}

}  // namespace

PeerPaths::PeerPaths(PathsContext* context, std::string worker)
    : context_(context), worker_(std::move(worker)), paths_(context->transports.size()) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    paths_[i].peer = this;
    paths_[i].index = i;
  }
}

PeerPaths::~PeerPaths() { context_->poller->CancelTimer(this); }

// ---- Fetching ----

void PeerPaths::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn&& done) {
  size_t path = current_;
  if (keys_out_ != nullptr && !HasLeft() && keys_out_->empty() && !OthersOweEnds()) {
    keys_out_.reset();  // All fetches are on one path again.
  }
  if (keys_out_ != nullptr) {
    path = keys_out_->Add(key, PathFor(step_id, key));
    done = Counted(key, std::move(done));
  }
  Channel* channel = ChannelOn(path);
  if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  FailReceive(absl::UnavailableError(absl::StrCat("no path is left to ", worker_, "; ", Explain())),
              args.executor, std::move(done));
}

// The path in use, unless the peer may hold what came before for a fetch that has ended on another.
size_t PeerPaths::PathFor(int64_t step_id, const TensorKey& key) const {
  for (const Path& path : paths_) {
    if (path.index == current_ || path.channel == nullptr) continue;
    if (path.channel->OwesEnd(step_id, key)) return path.index;
  }
  return current_;
}

bool PeerPaths::OthersOweEnds() const {
  return std::any_of(paths_.begin(), paths_.end(), [this](const Path& path) {
    return path.index != current_ && path.channel != nullptr && path.channel->OwesAnyEnd();
  });
}

// For a fetch that was added to keys_out_.
DoneFn PeerPaths::Counted(const TensorKey& key, DoneFn done) {
  return [out = keys_out_, key, done = std::move(done)](Received&& received) mutable {
    out->Remove(key);
    std::move(done)(std::move(received));
  };
}

bool PeerPaths::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                          ManyDoneFn* done) {
  if (keys_out_ != nullptr) return false;
  Channel* channel = ChannelOn(current_);
  return channel != nullptr && channel->FetchMany(step_id, keys, args, done);
}

Channel* PeerPaths::InCallbacks() {
  if (keys_out_ != nullptr) return nullptr;
  Channel* channel = ChannelOn(current_);
  return channel != nullptr && channel->FetchesInCallbacks() ? channel : nullptr;
}

Channel* PeerPaths::ChannelOn(size_t index) {
  if (index >= paths_.size()) return nullptr;  // There are no transports.
  Path* path = &paths_[index];
  if (path->channel == nullptr) {
    path->channel = context_->transports[index]->MakeChannel(worker_, path);
    path->made_ns = now_ns();
  }
  return path->channel.get();
}

void PeerPaths::AbortStep(int64_t step_id, const absl::Status& status) {
  for (Path& path : paths_) {
    if (path.channel != nullptr) path.channel->AbortStep(step_id, status);
  }
}

// ---- From one path to another ----

// The best good path other than `failed`. If none is good, the one that was left first, which may
// work again, so that each is tried in turn. If there is no other, `failed`.
size_t PeerPaths::NextPath(size_t failed) const {
  size_t next = failed;
  for (const Path& path : paths_) {
    if (path.index == failed || path.standing == Standing::kRefused) continue;
    if (path.standing == Standing::kGood) return path.index;
    if (next == failed || path.since_ns < paths_[next].since_ns) next = path.index;
  }
  return next;
}

// Where the fetches of `path` go on: on `path` itself if there is no other; it then counts
// as good and keeps trying.
size_t PeerPaths::StepAside(Path* path, Standing standing, std::string why) {
  path->standing = standing;
  path->why = std::move(why);
  path->since_ns = now_ns();
  path->pause_ms = 0;
  const size_t next = current_ == path->index ? NextPath(path->index) : current_;
  paths_[next].standing = Standing::kGood;
  if (next == path->index) {
    TRYST_REACHED("rare: there is no other path");
    return next;
  }
  if (current_ == path->index) UsePath(next);
  ProbeLater(path);
  if (keys_out_ != nullptr) keys_out_->Move(path->index, next);
  return next;
}

bool PeerPaths::HasLeft() const {
  return std::any_of(paths_.begin(), paths_.end(),
                     [](const Path& path) { return path.standing == Standing::kLeft; });
}

void PeerPaths::UsePath(size_t index) {
  current_ = index;
  for (Path& path : paths_) {
    if (path.channel != nullptr) path.channel->AskAhead(path.index == index);
  }
}

// `counted`: the fetches are in keys_out_ already.
void PeerPaths::GoOn(std::vector<WaitingFetch> fetches, size_t path, bool counted) {
  for (WaitingFetch& fetch : fetches) {
    if (counted) {
      ChannelOn(path)->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    } else {
      Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    }
  }
}

// Nothing was requested on it, so its fetches can move. The reason may pass: a peer gets another
// configuration, or a container now shares its host's namespace.
void PeerPaths::OnRefused(Path* path) {
  const std::string why = absl::StrCat(NameOf(*path), ": ", WhyOf(*path->channel));
  size_t next = current_;
  if (path->standing == Standing::kRefused) {
    path->why = why;
  } else {
    next = StepAside(path, Standing::kRefused, why);
    if (next == path->index) return;  // There is no other path, so it keeps trying.
    TRYST_LOG(Info) << context_->options->self << " cannot reach " << worker_ << " by " << why;
  }
  GoOn(path->channel->TakeWaiting(), next, keys_out_ != nullptr);
}

// The path has stopped working, so all fetches that waited for it go to the next one.
void PeerPaths::OnLeft(Path* path, std::vector<WaitingFetch> fetches) {
  const std::string why = WhyOf(*path->channel);
  const bool in_use = current_ == path->index;
  const bool counted = keys_out_ != nullptr;
  const size_t next = StepAside(path, Standing::kLeft, why);
  if (in_use && next != path->index) {
    TRYST_LOG(Warning) << context_->options->self << " now reaches " << worker_ << " by "
                       << NameOf(paths_[next]) << ", and moves " << fetches.size()
                       << " fetches there, because " << NameOf(*path) << " failed: " << why;
  }
  TRYST_REACHED("sim: fetches go on by another path");
  if (!counted) keys_out_ = std::make_shared<KeysOut>();
  GoOn(std::move(fetches), next, counted);
}

void PeerPaths::OnUsable(Path* path) {
  if (path->standing == Standing::kGood) return;
  const bool was_refused = path->standing == Standing::kRefused;
  path->standing = Standing::kGood;
  if (path->index >= current_) return;
  TRYST_REACHED("sim: a better path works again");
  if (was_refused) {
    TRYST_LOG(Info) << context_->options->self << " now reaches " << worker_ << " by "
                    << NameOf(*path) << "; earlier it could not: " << path->why;
  } else {
    TRYST_LOG(Info) << context_->options->self << " reaches " << worker_ << " by " << NameOf(*path)
                    << " again, after " << (now_ns() - path->since_ns) / 1'000'000 << " ms by "
                    << NameOf(paths_[current_]);
  }
  UsePath(path->index);
  counted_since_ns_ = now_ns();
  if (keys_out_ == nullptr) keys_out_ = std::make_shared<KeysOut>();
  NoteKeysBefore();
}

// Fetches of a key that are out on another path must get its tensors before new ones do. So the key
// moves to this path only when they have ended.
void PeerPaths::NoteKeysBefore() {
  KeysOut::Paths before;
  for (const Path& path : paths_) {
    if (path.channel == nullptr || path.index == current_) continue;
    LiveOps out(std::numeric_limits<size_t>::max());
    path.channel->ListOps(&out);
    for (const LiveOp& op : out.Take()) {
      // Later ones are counted. Noted here, they would keep a key there for ever that is always
      // fetched again.
      if (op.span.began_ns() <= counted_since_ns_) before.emplace(op.key, path.index);
    }
  }
  keys_out_->SetBefore(std::move(before));
  keys_checked_ns_ = now_ns();
  SetTimer();
}

// ---- Trying again ----

void PeerPaths::ProbeLater(Path* path) {
  const ChannelPoolOptions& options = *context_->options;
  path->pause_ms =
      path->pause_ms == 0 ? options.probe_ms : std::min(path->pause_ms * 2, options.probe_ms_most);
  // A random time between half and all of the pause, so that consumers do not all come back at
  // once.
  const int64_t half_ns = path->pause_ms * 500'000;
  path->probe_ns = now_ns() + half_ns +
                   static_cast<int64_t>(context_->random() % static_cast<uint64_t>(half_ns + 1));
  SetTimer();
}

void PeerPaths::SetTimer() {
  if (closed_) return;
  int64_t at_ns = std::numeric_limits<int64_t>::max();
  for (const Path& path : paths_) {
    if (path.standing != Standing::kGood && path.index < current_) {
      at_ns = std::min(at_ns, path.probe_ns);
    }
  }
  if (keys_out_ != nullptr && keys_out_->has_before()) {
    at_ns = std::min(at_ns, keys_checked_ns_ + kKeysNs);
  }
  if (at_ns != std::numeric_limits<int64_t>::max()) context_->poller->SetTimer(this, at_ns);
}

void PeerPaths::OnTimer() {
  for (size_t i = 0; i < current_; ++i) {
    Path* path = &paths_[i];
    if (path->standing == Standing::kGood || path->probe_ns > now_ns()) continue;
    ProbeLater(path);
    path->channel->Probe();
  }
  if (keys_out_ != nullptr && keys_out_->has_before() && now_ns() - keys_checked_ns_ >= kKeysNs) {
    NoteKeysBefore();
  }
}

void PeerPaths::RetryNow() {
  for (Path& path : paths_) {
    path.pause_ms = 0;
    path.probe_ns = now_ns();
    if (path.channel != nullptr) path.channel->RetryNow();
  }
  SetTimer();
}

void PeerPaths::NoteIncarnation(uint64_t incarnation) {
  if (std::exchange(incarnation_, incarnation) == incarnation) return;
  for (Path& path : paths_) {
    if (path.standing != Standing::kRefused) continue;
    path.pause_ms = 0;
    path.probe_ns = now_ns();
  }
  SetTimer();
}

bool PeerPaths::Path::HasForAnySize() const { return peer->PathForAnySize(index) != index; }

// The best good one behind `path`; if none is good, the best that may be so again; else `path`.
size_t PeerPaths::PathForAnySize(size_t path) const {
  size_t found = path;
  for (size_t other = path + 1; other < paths_.size(); ++other) {
    if (!context_->transports[other]->brings_any_size()) continue;
    if (paths_[other].standing == Standing::kGood) return other;
    if (found == path && paths_[other].standing == Standing::kLeft) found = other;
  }
  return found;
}

// They go on by another path, and so do later fetches of their key, until these have ended.
void PeerPaths::OnTooLarge(Path* path, std::vector<WaitingFetch> fetches) {
  const size_t next = PathForAnySize(path->index);
  if (path->passed_on == 0 && !fetches.empty()) {
    TRYST_LOG(Info) << context_->options->self << " fetches " << fetches.front().key.text()
                    << " over " << NameOf(paths_[next])
                    << ", because the tensor is larger than landing_bytes of " << NameOf(*path)
                    << "; `tryst explain` counts further such tensors, which are not logged";
  }
  path->passed_on += fetches.size();
  path->passed_to = next;
  if (keys_out_ == nullptr) keys_out_ = std::make_shared<KeysOut>();
  for (WaitingFetch& fetch : fetches) {
    keys_out_->AddTo(fetch.key, next);
    ChannelOn(next)->Fetch(fetch.step, fetch.key, fetch.args,
                           Counted(fetch.key, std::move(fetch.done)));
  }
}

// ---- Ending ----

void PeerPaths::Close(const absl::Status& why) {
  closed_ = true;
  context_->poller->CancelTimer(this);
  for (Path& path : paths_) {
    if (path.channel != nullptr) path.channel->Close(why);
  }
}

bool PeerPaths::Drained() const {
  return std::all_of(paths_.begin(), paths_.end(), [](const Path& path) {
    return path.channel == nullptr || path.channel->Drained();
  });
}

// ---- Explaining ----

std::string PeerPaths::Explain() const {
  const Channel* current = paths_.empty() ? nullptr : paths_[current_].channel.get();
  std::string out =
      current != nullptr ? current->Explain() : absl::StrCat(worker_, ": not asked yet");
  for (const auto& [name, why] : context_->missing) {
    absl::StrAppend(&out, "\n  no ", name, " here: ", Printable(why.message()));
  }
  for (const Path& path : paths_) {
    if (path.standing == Standing::kRefused)
      absl::StrAppend(&out, "\n  turned down: ", Printable(path.why));
    if (path.standing != Standing::kLeft) continue;
    absl::StrAppend(&out, "\n  left since ", (now_ns() - path.since_ns) / 1'000'000,
                    " ms: ", NameOf(path), ": ", Printable(path.why), "; tried again every ",
                    path.pause_ms, " ms");
  }
  return out;
}

void PeerPaths::View(std::vector<PathView>* views) const {
  for (const Path& path : paths_) views->push_back(ViewOf(path));
}

PathView PeerPaths::ViewOf(const Path& path) const {
  PathView view;
  view.peer = worker_;
  view.path = NameOf(path);
  if (path.channel == nullptr) {
    view.state = "not tried";
    if (path.index > current_) view.why = "a better one is in use";
    return view;
  }
  view.in_use = path.index == current_;
  path.channel->View(&view);
  if (view.state.empty()) {  // It has no connection of its own.
    view.health = view.in_use ? PathHealth::kWorking : PathHealth::kIdle;
    view.state = view.in_use ? "in use" : "spare";
    view.why = path.channel->Explain();
    view.since_ns = path.made_ns;
  }
  if (path.standing != Standing::kGood) {
    const bool left = path.standing == Standing::kLeft;
    view.health = left ? PathHealth::kFailing : PathHealth::kIdle;
    view.state = left ? "left" : "turned down";
    view.why = path.why;
    if (left) view.since_ns = path.since_ns;
  }
  if (path.passed_on > 0) {
    absl::StrAppend(
        &view.note, view.note.empty() ? "" : ", ", path.passed_on, " went over ",
        NameOf(paths_[path.passed_to]),
        " instead: they, or earlier tensors of their key, are larger than landing_bytes");
  }
  LiveOps ops(0);
  path.channel->ListOps(&ops);
  view.under_way = ops.left_out();
  return view;
}

void PeerPaths::ListOps(LiveOps* ops) const {
  for (const Path& path : paths_) {
    if (path.channel != nullptr) path.channel->ListOps(ops);
  }
}

}  // namespace tryst
