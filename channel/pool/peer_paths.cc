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
    : context_(context), worker_(std::move(worker)), ways_(context->transports.size()) {
  for (size_t i = 0; i < ways_.size(); ++i) {
    ways_[i].peer = this;
    ways_[i].index = i;
  }
}

PeerPaths::~PeerPaths() { context_->poller->CancelTimer(this); }

// ---- Fetching ----

void PeerPaths::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn&& done) {
  size_t way = current_;
  if (keys_out_ != nullptr && !HasLeft() && keys_out_->empty()) {
    keys_out_.reset();  // All fetches are on one path again.
  }
  if (keys_out_ != nullptr) {
    way = keys_out_->Add(key, way);
    done = Counted(key, std::move(done));
  }
  Channel* channel = ChannelOn(way);
  if (channel != nullptr) return channel->Fetch(step_id, key, args, std::move(done));
  FailReceive(absl::UnavailableError(absl::StrCat("no path is left to ", worker_, "; ", Explain())),
              args.executor, std::move(done));
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
  if (index >= ways_.size()) return nullptr;  // There are no transports.
  Way* way = &ways_[index];
  if (way->channel == nullptr) {
    way->channel = context_->transports[index]->MakeChannel(worker_, way);
    way->made_ns = now_ns();
  }
  return way->channel.get();
}

void PeerPaths::AbortStep(int64_t step_id, const absl::Status& status) {
  for (Way& way : ways_) {
    if (way.channel != nullptr) way.channel->AbortStep(step_id, status);
  }
}

// ---- From one path to another ----

// The best good path other than `failed`. If none is good, the one that was left first, which may
// work again, so that each is tried in turn. If there is no other, `failed`.
size_t PeerPaths::NextWay(size_t failed) const {
  size_t next = failed;
  for (const Way& way : ways_) {
    if (way.index == failed || way.standing == Standing::kRefused) continue;
    if (way.standing == Standing::kGood) return way.index;
    if (next == failed || way.since_ns < ways_[next].since_ns) next = way.index;
  }
  return next;
}

// The path on which the fetches of `way` go on. `way` itself if there is no other; it then counts
// as good and keeps trying.
size_t PeerPaths::StepAside(Way* way, Standing standing, std::string why) {
  way->standing = standing;
  way->why = std::move(why);
  way->since_ns = now_ns();
  way->pause_ms = 0;
  const size_t next = current_ == way->index ? NextWay(way->index) : current_;
  ways_[next].standing = Standing::kGood;
  if (next == way->index) {
    TRYST_REACHED("rare: there is no other path");
    return next;
  }
  if (current_ == way->index) UseWay(next);
  ProbeLater(way);
  if (keys_out_ != nullptr) keys_out_->Move(way->index, next);
  return next;
}

bool PeerPaths::HasLeft() const {
  return std::any_of(ways_.begin(), ways_.end(),
                     [](const Way& way) { return way.standing == Standing::kLeft; });
}

void PeerPaths::UseWay(size_t index) {
  current_ = index;
  for (Way& way : ways_) {
    if (way.channel != nullptr) way.channel->AskAhead(way.index == index);
  }
}

// `counted`: the fetches are in keys_out_ already.
void PeerPaths::GoOn(std::vector<WaitingFetch> fetches, size_t way, bool counted) {
  for (WaitingFetch& fetch : fetches) {
    if (counted) {
      ChannelOn(way)->Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    } else {
      Fetch(fetch.step, fetch.key, fetch.args, std::move(fetch.done));
    }
  }
}

// Nothing was requested on it, so its fetches can move. The reason may pass: a peer gets another
// configuration, or a container now shares its host's namespace.
void PeerPaths::OnRefused(Way* way) {
  const std::string why = absl::StrCat(NameOf(*way), ": ", WhyOf(*way->channel));
  size_t next = current_;
  if (way->standing == Standing::kRefused) {
    way->why = why;
  } else {
    next = StepAside(way, Standing::kRefused, why);
    if (next == way->index) return;  // There is no other path, so it keeps trying.
    TRYST_LOG(Info) << context_->options->self << " cannot reach " << worker_ << " by " << why;
  }
  GoOn(way->channel->TakeWaiting(), next, keys_out_ != nullptr);
}

// The path has stopped working, so all fetches that waited for it go to the next one.
void PeerPaths::OnLeft(Way* way, std::vector<WaitingFetch> fetches) {
  const std::string why = WhyOf(*way->channel);
  const bool in_use = current_ == way->index;
  const bool counted = keys_out_ != nullptr;
  const size_t next = StepAside(way, Standing::kLeft, why);
  if (in_use && next != way->index) {
    TRYST_LOG(Warning) << context_->options->self << " now reaches " << worker_ << " by "
                       << NameOf(ways_[next]) << ", and moves " << fetches.size()
                       << " fetches there, because " << NameOf(*way) << " failed: " << why;
  }
  TRYST_REACHED("sim: fetches go on by another path");
  if (!counted) keys_out_ = std::make_shared<KeysOut>();
  GoOn(std::move(fetches), next, counted);
}

void PeerPaths::OnUsable(Way* way) {
  if (way->standing == Standing::kGood) return;
  const bool was_refused = way->standing == Standing::kRefused;
  way->standing = Standing::kGood;
  if (way->index >= current_) return;
  TRYST_REACHED("sim: a better path works again");
  if (was_refused) {
    TRYST_LOG(Info) << context_->options->self << " now reaches " << worker_ << " by "
                    << NameOf(*way) << "; earlier it could not: " << way->why;
  } else {
    TRYST_LOG(Info) << context_->options->self << " reaches " << worker_ << " by " << NameOf(*way)
                    << " again, after " << (now_ns() - way->since_ns) / 1'000'000 << " ms by "
                    << NameOf(ways_[current_]);
  }
  UseWay(way->index);
  counted_since_ns_ = now_ns();
  if (keys_out_ == nullptr) keys_out_ = std::make_shared<KeysOut>();
  NoteKeysBefore();
}

// Fetches of a key that are out on another path must get its tensors before new ones do. So the key
// moves to this path only when they have ended.
void PeerPaths::NoteKeysBefore() {
  KeysOut::Ways before;
  for (const Way& way : ways_) {
    if (way.channel == nullptr || way.index == current_) continue;
    LiveOps out(std::numeric_limits<size_t>::max());
    way.channel->ListOps(&out);
    for (const LiveOp& op : out.Take()) {
      // Later ones are counted. Noted here, they would keep a key there for ever that is always
      // fetched again.
      if (op.span.began_ns() <= counted_since_ns_) before.emplace(op.key, way.index);
    }
  }
  keys_out_->SetBefore(std::move(before));
  keys_checked_ns_ = now_ns();
  SetTimer();
}

// ---- Trying again ----

void PeerPaths::ProbeLater(Way* way) {
  const ChannelPoolOptions& options = *context_->options;
  way->pause_ms =
      way->pause_ms == 0 ? options.probe_ms : std::min(way->pause_ms * 2, options.probe_ms_most);
  // A random time between half and all of the pause, so that consumers do not all come back at
  // once.
  const int64_t half_ns = way->pause_ms * 500'000;
  way->probe_ns = now_ns() + half_ns +
                  static_cast<int64_t>(context_->random() % static_cast<uint64_t>(half_ns + 1));
  SetTimer();
}

void PeerPaths::SetTimer() {
  if (closed_) return;
  int64_t at_ns = std::numeric_limits<int64_t>::max();
  for (const Way& way : ways_) {
    if (way.standing != Standing::kGood && way.index < current_) {
      at_ns = std::min(at_ns, way.probe_ns);
    }
  }
  if (keys_out_ != nullptr && keys_out_->has_before()) {
    at_ns = std::min(at_ns, keys_checked_ns_ + kKeysNs);
  }
  if (at_ns != std::numeric_limits<int64_t>::max()) context_->poller->SetTimer(this, at_ns);
}

void PeerPaths::OnTimer() {
  for (size_t i = 0; i < current_; ++i) {
    Way* way = &ways_[i];
    if (way->standing == Standing::kGood || way->probe_ns > now_ns()) continue;
    ProbeLater(way);
    way->channel->Probe();
  }
  if (keys_out_ != nullptr && keys_out_->has_before() && now_ns() - keys_checked_ns_ >= kKeysNs) {
    NoteKeysBefore();
  }
}

void PeerPaths::RetryNow() {
  for (Way& way : ways_) {
    way.pause_ms = 0;
    way.probe_ns = now_ns();
    if (way.channel != nullptr) way.channel->RetryNow();
  }
  SetTimer();
}

void PeerPaths::NoteIncarnation(uint64_t incarnation) {
  if (std::exchange(incarnation_, incarnation) == incarnation) return;
  for (Way& way : ways_) {
    if (way.standing != Standing::kRefused) continue;
    way.pause_ms = 0;
    way.probe_ns = now_ns();
  }
  SetTimer();
}

bool PeerPaths::Way::HasLastResort() const {
  return peer->context_->transports.back()->is_last_resort() && index + 1 < peer->ways_.size();
}

// They go on by the last path, and so do later fetches of their key, until these have ended.
void PeerPaths::OnTooLarge(Way* way, std::vector<WaitingFetch> fetches) {
  const size_t last = ways_.size() - 1;
  if (way->passed_on == 0 && !fetches.empty()) {
    TRYST_LOG(Info) << context_->options->self << " fetches " << fetches.front().key.text()
                    << " over " << NameOf(ways_[last])
                    << ", because the tensor is larger than landing_bytes of " << NameOf(*way)
                    << "; `tryst explain` counts further such tensors, which are not logged";
  }
  way->passed_on += fetches.size();
  if (keys_out_ == nullptr) keys_out_ = std::make_shared<KeysOut>();
  for (WaitingFetch& fetch : fetches) {
    keys_out_->AddTo(fetch.key, last);
    ChannelOn(last)->Fetch(fetch.step, fetch.key, fetch.args,
                           Counted(fetch.key, std::move(fetch.done)));
  }
}

// ---- Ending ----

void PeerPaths::Close(const absl::Status& why) {
  closed_ = true;
  context_->poller->CancelTimer(this);
  for (Way& way : ways_) {
    if (way.channel != nullptr) way.channel->Close(why);
  }
}

bool PeerPaths::Drained() const {
  return std::all_of(ways_.begin(), ways_.end(), [](const Way& way) {
    return way.channel == nullptr || way.channel->Drained();
  });
}

// ---- Explaining ----

std::string PeerPaths::Explain() const {
  const Channel* current = ways_.empty() ? nullptr : ways_[current_].channel.get();
  std::string out =
      current != nullptr ? current->Explain() : absl::StrCat(worker_, ": not asked yet");
  for (const auto& [name, why] : context_->missing) {
    absl::StrAppend(&out, "\n  no ", name, " here: ", Printable(why.message()));
  }
  for (const Way& way : ways_) {
    if (way.standing == Standing::kRefused)
      absl::StrAppend(&out, "\n  turned down: ", Printable(way.why));
    if (way.standing != Standing::kLeft) continue;
    absl::StrAppend(&out, "\n  left since ", (now_ns() - way.since_ns) / 1'000'000,
                    " ms: ", NameOf(way), ": ", Printable(way.why), "; tried again every ",
                    way.pause_ms, " ms");
  }
  return out;
}

void PeerPaths::View(std::vector<PathView>* views) const {
  for (const Way& way : ways_) views->push_back(ViewOf(way));
}

PathView PeerPaths::ViewOf(const Way& way) const {
  PathView view;
  view.peer = worker_;
  view.path = NameOf(way);
  if (way.channel == nullptr) {
    view.state = "not tried";
    if (way.index > current_) view.why = "a better one is in use";
    return view;
  }
  view.in_use = way.index == current_;
  way.channel->View(&view);
  if (view.state.empty()) {  // It has no connection of its own.
    view.health = view.in_use ? PathHealth::kWorking : PathHealth::kIdle;
    view.state = view.in_use ? "in use" : "spare";
    view.why = way.channel->Explain();
    view.since_ns = way.made_ns;
  }
  if (way.standing != Standing::kGood) {
    const bool left = way.standing == Standing::kLeft;
    view.health = left ? PathHealth::kFailing : PathHealth::kIdle;
    view.state = left ? "left" : "turned down";
    view.why = way.why;
    if (left) view.since_ns = way.since_ns;
  }
  if (way.passed_on > 0) {
    absl::StrAppend(&view.note, view.note.empty() ? "" : ", ", way.passed_on, " went over ",
                    NameOf(ways_.back()), " instead: they, or earlier tensors of their key, are ",
                    "larger than landing_bytes");
  }
  LiveOps ops(0);
  way.channel->ListOps(&ops);
  view.under_way = ops.left_out();
  return view;
}

void PeerPaths::ListOps(LiveOps* ops) const {
  for (const Way& way : ways_) {
    if (way.channel != nullptr) way.channel->ListOps(ops);
  }
}

}  // namespace tryst
