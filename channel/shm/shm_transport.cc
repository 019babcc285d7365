#include "channel/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

ShmTransport::ShmTransport(const TransportContext& context, std::shared_ptr<Arena> arena,
                           ShmOptions options)
    : context_(context), arena_(std::move(arena)), options_(options), seed_(context.seed) {}

absl::Status ShmTransport::Open() {
  auto hub = ShmHub::Create(context_.poller, arena_,
                            options_.crew != nullptr ? options_.crew : std::make_shared<Crew>(0));
  if (!hub.ok()) return hub.status();
  hub_ = *std::move(hub);
  hub_->Attach();
  return absl::OkStatus();
}

ShmTransport::~ShmTransport() {
  if (hub_ != nullptr) hub_->poller()->ForgetFlush(this);
  serving_.clear();
  arena_->Trim();  // Frees what it has kept for consumers that are gone by now.
  if (hub_ != nullptr) hub_->Detach();
}

std::unique_ptr<Channel> ShmTransport::MakeChannel(const std::string& peer, PathUser* user) {
  std::function<void(std::vector<WaitingFetch>)> on_left;
  if (user->HasAnother()) {
    on_left = [user](std::vector<WaitingFetch> fetches) { user->OnLeft(std::move(fetches)); };
  }
  auto channel = MakeFetchChannel(
      peer, [user] { user->OnRefused(); }, [user] { user->OnUsable(); }, std::move(on_left));
  fetching_.push_back(channel.get());
  return channel;
}

std::unique_ptr<ShmFetchChannel> ShmTransport::MakeFetchChannel(
    const std::string& peer, std::function<void()> on_refused, std::function<void()> on_open,
    std::function<void(std::vector<WaitingFetch>)> on_left) {
  ShmFetchOptions options;
  options.sizes = options_.sizes;
  options.digests = options_.digests;
  options.allow_pull = options_.allow_pull;
  options.self = context_.self;
  options.self_incarnation = context_.incarnation;
  options.peer = peer;
  options.on_refused = std::move(on_refused);
  options.on_open = std::move(on_open);
  if (on_left != nullptr) options.give_up_ms = options_.give_up_ms;
  options.on_left = std::move(on_left);
  options.trace = context_.trace;
  options.max_tensor_bytes = context_.max_tensor_bytes;
  options.patience_ms = options_.patience_ms;
  options.join_timeout_ms = options_.join_timeout_ms;
  options.max_waiting = std::min(options_.max_waiting, shm_wire::kMaxParked);
  options.seed = ++seed_;
  return std::make_unique<ShmFetchChannel>(hub_.get(), context_.bootstrap, std::move(options));
}

void ShmTransport::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(close_status_);
  auto offer = shm_wire::DecodeOffer(hello.parameters);
  if (!offer.ok()) return std::move(done)(offer.status());
  HostIdentity theirs;
  theirs.boot_id = offer->boot_id;
  theirs.network_space = offer->network_space;
  const absl::Status same = CheckSameHost(hub_->host(), theirs);
  if (!same.ok()) return std::move(done)(same);
  // A consumer has one link; a new one tells that the former has ended.
  for (auto& channel : serving_) {
    if (channel->consumer() == hello.worker && !channel->MakeWayFor(hello)) {
      return std::move(done)(absl::AbortedError(absl::StrCat(
          "connection ", hello.epoch, " is over: the same consumer has opened another since")));
    }
  }
  for (WaitingHello& waiting : waiting_) {
    if (waiting.hello.worker != hello.worker) continue;
    std::exchange(waiting.done, std::move(done))(
        absl::AbortedError("the consumer has asked to open a newer connection"));
    waiting.hello = hello;
    waiting.offer = *std::move(offer);
    return;
  }
  if (IsDrained(hello.worker)) return AnswerHello(hello, *offer, std::move(done));
  // A tensor that another thread is sending at this moment may have met a take that is no longer
  // wanted. It must be back before the consumer asks again; otherwise a later tensor would overtake
  // it.
  waiting_.push_back({hello, *std::move(offer), std::move(done)});
}

bool ShmTransport::IsDrained(const std::string& consumer) const {
  return std::all_of(serving_.begin(), serving_.end(), [&](const auto& channel) {
    return channel->consumer() != consumer || channel->Drained();
  });
}

void ShmTransport::Flush() {
  std::vector<WaitingHello> answered;
  for (WaitingHello& one : std::exchange(waiting_, {})) {
    (IsDrained(one.hello.worker) ? answered : waiting_).push_back(std::move(one));
  }
  for (WaitingHello& one : answered) AnswerHello(one.hello, one.offer, std::move(one.done));
}

void ShmTransport::AnswerHello(const Hello& hello, const shm_wire::Offer& offer, HelloDone done) {
  Reap();
  if (serving_.size() >= options_.max_consumers) {
    return std::move(done)(absl::ResourceExhaustedError(
        absl::StrCat(options_.max_consumers,
                     " consumers share memory with this worker, which is the most that max_peers "
                     "allows: raise max_peers")));
  }
  if (kept_.size() >= std::min<size_t>(kMostKept, options_.max_consumers)) {
    arena_->Trim();  // Looks which of them are over.
    const size_t kept = KeptFor(hello.worker);
    if (kept >= kMostKept || kept_.size() >= options_.max_consumers) {
      return std::move(done)(absl::ResourceExhaustedError(
          absl::StrCat(kept, " ended connections with ", hello.worker, ", and ", kept_.size(),
                       " with all consumers, are still kept, because their programs hold tensors "
                       "that came over them: release tensors that were received in shared memory, "
                       "or end the process that holds them")));
    }
  }
  ShmServeOptions serve;
  serve.most = options_.sizes;
  serve.self = context_.self;
  serve.self_incarnation = context_.incarnation;
  serve.digests = options_.digests;
  serve.before_accepted = options_.before_accepted;
  serve.stage_bytes = options_.stage_bytes;
  serve.pull_bytes = options_.pull_bytes;
  serve.parts_bytes = options_.parts_bytes;
  serve.parts_room_bytes = options_.parts_room_bytes;
  serve.trace = context_.trace;
  serve.allow_pull = options_.allow_pull;
  serve.apart = options_.apart;
  serve.on_drained = [this] { hub_->poller()->FlushThisTurn(this); };
  auto channel = std::make_unique<ShmServeChannel>(hub_.get(), context_.source, std::move(serve),
                                                   hello, offer);
  auto answer = channel->Invite();
  if (answer.ok()) {
    serving_.push_back(std::move(channel));
  } else {
    channel->Close(answer.status());
  }
  std::move(done)(std::move(answer));
}

void ShmTransport::Maintain() {
  for (auto& channel : serving_) channel->EndIfNotJoined();
  Reap();
  if (context_.place == 0) arena_->Trim();
}

void ShmTransport::Reap() {
  for (auto& channel : serving_) {
    if (!channel->Drained()) continue;
    counters_ += channel->counters();
    if (!channel->kept().expired()) kept_.push_back({channel->consumer(), channel->kept()});
    const size_t keys = channel->told_keys();
    channel.reset();
    hub_->poller()->NoteBurstOver(keys);
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
}

size_t ShmTransport::KeptFor(const std::string& consumer) {
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                             [](const KeptLink& link) { return link.given.expired(); }),
              kept_.end());
  return static_cast<size_t>(std::count_if(
      kept_.begin(), kept_.end(), [&](const KeptLink& link) { return link.consumer == consumer; }));
}

void ShmTransport::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  close_status_ = why;
  for (auto& channel : serving_) channel->Close(why);
  for (WaitingHello& one : std::exchange(waiting_, {})) std::move(one.done)(why);
}

bool ShmTransport::Drained() const {
  return closed_ && std::all_of(serving_.begin(), serving_.end(),
                                [](const auto& channel) { return channel->Drained(); });
}

void ShmTransport::ExplainServing(const std::string& consumer, std::string* out) const {
  for (const auto& channel : serving_) {
    if (consumer.empty() || channel->consumer() == consumer) {
      absl::StrAppend(out, channel->Explain(), "\n");
    }
  }
  if (consumer.empty() && context_.place == 0) absl::StrAppend(out, arena_->Explain(), "\n");
}

void ShmTransport::View(const std::string& consumer, std::vector<PathView>* views) const {
  for (const auto& channel : serving_) {
    if (!consumer.empty() && channel->consumer() != consumer) continue;
    LiveOps ops(0);
    channel->ListOps(&ops);
    PathView view;
    view.role = TraceRole::kServe;
    view.peer = channel->consumer();
    view.path = name_;
    view.in_use = !channel->ended();
    view.health = channel->health();
    view.state = channel->state_text();
    view.since_ns = channel->state_since_ns();
    view.epoch = channel->epoch();
    view.under_way = ops.left_out();
    view.note = channel->apart() ? "gets copies alone" : "";
    views->push_back(std::move(view));
  }
}

void ShmTransport::ListOps(LiveOps* ops) const {
  for (const auto& channel : serving_) channel->ListOps(ops);
}

void ShmTransport::AddCounters(Counters* counters) const {
  const ShmFetchCounters fetched = fetch_counters();
  counters->Count("shm_fetches", fetched.fetches);
  counters->Count("shm_fetched_bytes", fetched.bytes);
  counters->Count("shm_by_reference", fetched.by_reference);
  counters->Count("shm_in_cells", fetched.in_cells);
  counters->Count("shm_copied", fetched.copied);
  counters->Count("shm_pulled", fetched.pulled);
  counters->Count("shm_in_parts", fetched.in_parts);
  counters->Count("shm_links", fetched.links);
  counters->Count("shm_breaks", fetched.breaks);
  counters->Count("shm_replays", fetched.asked_again);
  counters->Count("shm_digests_wrong", fetched.digests_wrong);
  if (context_.place != 0) return;
  const ArenaCounters arena = arena_->counters();
  counters->Gauge("shm_used_bytes", arena.used_bytes);
  counters->Gauge("shm_segment_bytes", arena.segment_bytes);
  counters->Count("shm_refusals", arena.refusals);
}

ShmFetchCounters ShmTransport::fetch_counters() const {
  ShmFetchCounters sum;
  for (const ShmFetchChannel* channel : fetching_) sum += channel->counters();
  return sum;
}

ServeCounters ShmTransport::serve_counters() const {
  ServeCounters sum = counters_;
  for (const auto& channel : serving_) sum += channel->counters();
  return sum;
}

}  // namespace tryst
