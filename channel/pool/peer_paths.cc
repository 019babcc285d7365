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

// After so long a probe that is over is looked at again.
constexpr int64_t kReapNs = 1'000'000'000;

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
    paths_[i].kind = context->transports[i]->fetch_kind();
    if (paths_[i].kind == nullptr) continue;
    paths_[i].kind_number = path_of_kind_.size();
    path_of_kind_.push_back(i);
  }
}

PeerPaths::~PeerPaths() { context_->poller->CancelTimer(this); }

// ---- Fetching ----

void PeerPaths::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                      FetchedFn&& done) {
  if (wanted_ != current_) ComeBack();
  Channel* channel = InUse();
  if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  FailReceive(absl::UnavailableError(absl::StrCat("no path is left to ", worker_, "; ", Explain())),
              args.executor, std::move(done));
}

// Two channels at once would not keep the order of a key's sends.
void PeerPaths::ComeBack() {
  if (hands_over_ || InUse()->fetches_out() > 0) return;
  TRYST_REACHED("rare: fetches come back to a better channel");
  UsePath(wanted_);
}

bool PeerPaths::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                          ManyFetchedFn* done) {
  if (wanted_ != current_) ComeBack();
  Channel* channel = InUse();
  return channel != nullptr && channel->FetchMany(step_id, keys, args, done);
}

Channel* PeerPaths::InCallbacks() {
  if (wanted_ != current_) return nullptr;
  Channel* channel = InUse();
  return channel != nullptr && channel->FetchesInCallbacks() ? channel : nullptr;
}

std::unique_ptr<FetchSession> PeerPaths::NewSession(FetchSession::Kinds kinds,
                                                    KindChooser* chooser) {
  FetchOpsOptions options = FetchOptionsFrom(context_->options->sessions, context_->common, worker_,
                                             /*has_another=*/path_of_kind_.size() > 1);
  options.seed = context_->random();
  return std::make_unique<FetchSession>(context_->poller, context_->common.bootstrap, options,
                                        std::move(kinds), chooser);
}

Channel* PeerPaths::ChannelOn(size_t index) {
  if (index >= paths_.size()) return nullptr;  // There are no transports.
  Path* path = &paths_[index];
  if (!path->tried) {
    path->tried = true;
    path->since_ns = now_ns();
  }
  if (path->kind == nullptr) {
    if (path->channel == nullptr) {
      path->channel = context_->transports[index]->MakeChannel(worker_, path);
    }
    return path->channel.get();
  }
  if (session_ == nullptr) {
    FetchSession::Kinds kinds;
    for (size_t of_kind : path_of_kind_) kinds.push_back(paths_[of_kind].kind);
    session_ = NewSession(std::move(kinds), this);
    session_->MoveTo(path->kind_number);
  }
  return session_.get();
}

void PeerPaths::AbortStep(int64_t step_id, const absl::Status& status) {
  if (session_ != nullptr) session_->AbortStep(step_id, status);
  for (Path& path : paths_) {
    if (path.channel != nullptr) path.channel->AbortStep(step_id, status);
  }
}

// ---- From one path to another ----

// Where what was on `failed` goes on. The session goes on by the best good kind of link; if none is
// good, by the one that was left first, which may work again, so that each is tried in turn; and by
// another channel only if the peer refuses all kinds. If there is no other, `failed`.
size_t PeerPaths::NextPath(const Path& failed) const {
  size_t next = failed.index;
  bool refused = failed.standing == Standing::kRefused;
  for (const Path& path : paths_) {
    if (path.index == failed.index || path.standing == Standing::kRefused) continue;
    if (failed.kind != nullptr && path.kind == nullptr) continue;
    if (path.standing == Standing::kGood) return path.index;
    refused = false;
    if (next == failed.index || path.since_ns < paths_[next].since_ns) next = path.index;
  }
  if (failed.kind == nullptr || !refused) return next;
  for (const Path& path : paths_) {
    if (path.kind == nullptr && path.standing == Standing::kGood) return path.index;
  }
  return next;
}

void PeerPaths::StepAside(Path* path, Standing standing, std::string why) {
  path->standing = standing;
  path->why = std::move(why);
  path->since_ns = now_ns();
  // One that failed again soon is tried less often: each move costs what is under way its bytes.
  const int64_t soon_ns = context_->options->probe_ms_most * 1'000'000;
  if (path->back_ns == 0 || now_ns() - path->back_ns > soon_ns) path->pause_ms = 0;
}

void PeerPaths::UsePath(size_t index) {
  current_ = wanted_ = index;
  paths_[index].standing = Standing::kGood;
  ChannelOn(index);
  if (paths_[index].kind != nullptr) session_->MoveTo(paths_[index].kind_number);
  hands_over_ = false;
  SetTimer();  // Those that are better are tried again.
}

void PeerPaths::GoOn(std::vector<WaitingFetch> fetches) {
  Channel* const channel = InUse();
  for (WaitingFetch& fetch : fetches) {
    channel->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
  }
}

// It goes on there by itself. A path that counts as good, although there is no other, is tried
// again and again.
size_t PeerPaths::OnFailed(size_t kind, bool is_refused, const std::string& why) {
  Path* const path = &paths_[path_of_kind_[kind]];
  StepAside(path, is_refused ? Standing::kRefused : Standing::kLeft,
            is_refused ? absl::StrCat(NameOf(*path), ": ", why) : why);
  const size_t next = NextPath(*path);
  if (next == path->index) {
    TRYST_REACHED("rare: there is no other path");
    path->standing = Standing::kGood;
    return kind;
  }
  if (is_refused) {
    TRYST_LOG(Info) << context_->options->self << " cannot reach " << worker_ << " by "
                    << NameOf(*path) << ": " << why;
  } else {
    TRYST_REACHED("sim: fetches go on by another path");
    TRYST_LOG(Warning) << context_->options->self << " now reaches " << worker_ << " by "
                       << NameOf(paths_[next]) << ", and moves " << session_->live_asks()
                       << " fetches there, because " << NameOf(*path) << " failed: " << why;
  }
  // To another channel only when the session has handed over what it has: in the order of each key.
  hands_over_ = paths_[next].kind == nullptr;
  if (paths_[current_].kind != nullptr) {
    wanted_ = next;
    if (!hands_over_) current_ = next;
  }
  paths_[next].standing = Standing::kGood;
  ChannelOn(next);
  ProbeLater(path);
  return paths_[next].kind != nullptr ? paths_[next].kind_number : kNone;
}

// The peer refuses every kind of link; wanted_ is another channel.
void PeerPaths::OnGivenUp(std::vector<WaitingFetch> fetches) {
  hands_over_ = false;
  if (paths_[current_].kind != nullptr) UsePath(wanted_);
  GoOn(std::move(fetches));
}

// The reason may pass: a peer gets another configuration, or a container now shares its host's
// namespace.
void PeerPaths::OnChannelRefused(Path* path) {
  const bool again = path->standing == Standing::kRefused;
  const std::string why = absl::StrCat(NameOf(*path), ": ", WhyOf(*path->channel));
  if (again) {
    path->why = why;
    return;
  }
  StepAside(path, Standing::kRefused, why);
  const size_t next = NextPath(*path);
  if (next == path->index) {
    path->standing = Standing::kGood;
    return;
  }
  if (current_ == path->index) UsePath(next);
  ProbeLater(path);
  GoOn(path->channel->TakeWaiting());
}

void PeerPaths::OnPathUsable(Path* path) {
  if (path->standing == Standing::kGood) return;
  const bool was_refused = path->standing == Standing::kRefused;
  path->standing = Standing::kGood;
  path->back_ns = now_ns();
  SetTimer();
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
  if (path->kind != nullptr && paths_[current_].kind != nullptr) return UsePath(path->index);
  wanted_ = std::min(wanted_, path->index);
}

// ---- Trying again ----

void PeerPaths::Probe(Path* path) {
  if (path->kind == nullptr) return ChannelOn(path->index)->Probe();
  if (path->probe == nullptr) path->probe = NewSession({path->kind}, path);
  path->probe->Probe();
}

// In a turn of its own: one that has found out is in a call.
void PeerPaths::EndProbes() {
  for (Path& path : paths_) {
    if (!IsOver(path)) continue;
    path.probe->Close(absl::CancelledError("the path works"));
    closing_.push_back(std::move(path.probe));
  }
  const auto over = [](const auto& probe) { return probe->Drained(); };
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(), over), closing_.end());
}

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
    if (IsOver(path)) at_ns = now_ns();
    if (path.standing != Standing::kGood && path.index < current_) {
      at_ns = std::min(at_ns, path.probe_ns);
    }
  }
  if (!closing_.empty()) at_ns = std::min(at_ns, now_ns() + kReapNs);
  if (at_ns != std::numeric_limits<int64_t>::max()) context_->poller->SetTimer(this, at_ns);
}

void PeerPaths::OnTimer() {
  EndProbes();
  for (size_t i = 0; i < current_; ++i) {
    Path* path = &paths_[i];
    if (path->standing == Standing::kGood || path->probe_ns > now_ns()) continue;
    ProbeLater(path);
    Probe(path);
  }
  SetTimer();
}

void PeerPaths::RetryNow() {
  for (Path& path : paths_) {
    path.pause_ms = 0;
    path.probe_ns = now_ns();
    if (path.channel != nullptr) path.channel->RetryNow();
    if (path.probe != nullptr) path.probe->RetryNow();
  }
  if (session_ != nullptr) session_->RetryNow();
  SetTimer();
}

void PeerPaths::Renew(int64_t pause_ms) {
  if (session_ != nullptr) session_->Renew(pause_ms);
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

// ---- Ending ----

void PeerPaths::Close(const absl::Status& why) {
  closed_ = true;
  context_->poller->CancelTimer(this);
  if (session_ != nullptr) session_->Close(why);
  for (Path& path : paths_) {
    if (path.channel != nullptr) path.channel->Close(why);
    if (path.probe != nullptr) path.probe->Close(why);
  }
}

bool PeerPaths::Drained() const {
  const auto drained = [](const auto& channel) { return channel == nullptr || channel->Drained(); };
  return drained(session_) && std::all_of(closing_.begin(), closing_.end(), drained) &&
         std::all_of(paths_.begin(), paths_.end(), [&](const Path& path) {
           return drained(path.channel) && drained(path.probe);
         });
}

// ---- Explaining ----

std::string PeerPaths::Explain() const {
  const Path* const in_use = paths_.empty() ? nullptr : &paths_[current_];
  const Channel* current = nullptr;
  if (in_use != nullptr) current = in_use->kind != nullptr ? session_.get() : in_use->channel.get();
  std::string out =
      current != nullptr ? current->Explain() : absl::StrCat(worker_, ": not asked yet");
  for (const auto& [name, why] : context_->missing) {
    absl::StrAppend(&out, "\n  no ", name, " here: ", Printable(why.message()));
  }
  for (const Path& path : paths_) {
    if (path.standing == Standing::kRefused) {
      absl::StrAppend(&out, "\n  turned down: ", Printable(path.why));
    }
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
  if (!path.tried) {
    view.state = "not tried";
    if (path.index > current_) view.why = "a better one is in use";
    return view;
  }
  view.in_use = path.index == current_;
  const Channel* channel = path.channel.get();
  if (path.kind != nullptr && view.in_use) channel = session_.get();
  if (channel != nullptr) channel->View(&view);
  if (view.state.empty()) {  // It has no connection of its own.
    view.health = view.in_use ? PathHealth::kWorking : PathHealth::kIdle;
    view.state = view.in_use ? "in use" : "spare";
    if (channel != nullptr) view.why = channel->Explain();
    view.since_ns = path.since_ns;
  }
  if (path.standing != Standing::kGood) {
    const bool left = path.standing == Standing::kLeft;
    view.health = left ? PathHealth::kFailing : PathHealth::kIdle;
    view.state = left ? "left" : "turned down";
    view.why = path.why;
    if (left) view.since_ns = path.since_ns;
  }
  if (channel == nullptr) return view;
  LiveOps ops(0);
  channel->ListOps(&ops);
  view.under_way = ops.left_out();
  return view;
}

void PeerPaths::ListOps(LiveOps* ops) const {
  if (session_ != nullptr) session_->ListOps(ops);
  for (const Path& path : paths_) {
    if (path.channel != nullptr) path.channel->ListOps(ops);
  }
}

}  // namespace tryst
