#include "channel/shm/shm_path.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

absl::StatusOr<std::unique_ptr<ShmPath>> ShmPath::Create(Poller* poller, Bootstrap* bootstrap,
                                                         TensorSource* source,
                                                         std::shared_ptr<Arena> arena,
                                                         ShmPathOptions options) {
  const int helpers = options.copy_helpers;
  std::unique_ptr<ShmPath> path(
      new ShmPath(bootstrap, source, std::move(arena), std::move(options)));
  auto hub = ShmHub::Create(poller, path->arena_, helpers);
  if (!hub.ok()) return hub.status();
  path->hub_ = *std::move(hub);
  path->hub_->Attach();
  return path;
}

ShmPath::~ShmPath() {
  if (hub_ != nullptr) hub_->poller()->ForgetFlush(this);
  serving_.clear();
  arena_->Trim();  // Of what it has kept for consumers that are gone by now.
  if (hub_ != nullptr) hub_->Detach();
}

std::unique_ptr<ShmFetchChannel> ShmPath::MakeFetchChannel(const std::string& peer,
                                                           std::function<void()> on_refused,
                                                           std::function<void()> on_open) {
  ShmFetchOptions options;
  options.sizes = options_.sizes;
  options.digests = options_.digests;
  options.allow_pull = options_.allow_pull;
  options.self = options_.self;
  options.self_incarnation = options_.self_incarnation;
  options.peer = peer;
  options.on_refused = std::move(on_refused);
  options.on_open = std::move(on_open);
  options.trace = options_.trace;
  options.link_newest = options_.link_newest;
  options.patience_ms = options_.patience_ms;
  options.max_waiting = std::min(options_.max_waiting, shm_wire::kMaxParked);
  options.seed = ++seed_;
  return std::make_unique<ShmFetchChannel>(hub_.get(), bootstrap_, std::move(options));
}

void ShmPath::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(close_status_);
  auto offer = shm_wire::DecodeOffer(hello.parameters);
  if (!offer.ok()) return std::move(done)(offer.status());
  HostIdentity theirs;
  theirs.boot_id = offer->boot_id;
  theirs.network_space = offer->network_space;
  const absl::Status same = CheckSameHost(hub_->host(), theirs);
  if (!same.ok()) return std::move(done)(same);
  // One link to a consumer: a new one says that the former is over.
  for (auto& channel : serving_) {
    if (channel->consumer() == hello.worker && !channel->MakeWayFor(hello)) {
      return std::move(done)(absl::AbortedError(
          absl::StrCat("epoch ", hello.epoch, " is over: another link was opened since")));
    }
  }
  for (WaitingHello& waiting : waiting_) {
    if (waiting.hello.worker != hello.worker) continue;
    std::exchange(waiting.done, std::move(done))(absl::AbortedError("a newer hello came"));
    waiting.hello = hello;
    waiting.offer = *std::move(offer);
    return;
  }
  if (IsDrained(hello.worker)) return AnswerHello(hello, *offer, std::move(done));
  // What another thread is sending this moment has met a take that nobody wants any more. It
  // must be back before the consumer asks again, or what is sent after it would be had first.
  waiting_.push_back({hello, *std::move(offer), std::move(done)});
}

bool ShmPath::IsDrained(const std::string& consumer) const {
  return std::all_of(serving_.begin(), serving_.end(), [&](const auto& channel) {
    return channel->consumer() != consumer || channel->Drained();
  });
}

void ShmPath::Flush() {
  std::vector<WaitingHello> answered;
  for (WaitingHello& one : std::exchange(waiting_, {})) {
    (IsDrained(one.hello.worker) ? answered : waiting_).push_back(std::move(one));
  }
  for (WaitingHello& one : answered) AnswerHello(one.hello, one.offer, std::move(one.done));
}

void ShmPath::AnswerHello(const Hello& hello, const shm_wire::Offer& offer, HelloDone done) {
  Reap();
  if (serving_.size() >= options_.max_consumers) {
    return std::move(done)(absl::ResourceExhaustedError(absl::StrCat(
        options_.max_consumers, " consumers share memory with us: raise max_consumers")));
  }
  ShmServeOptions serve;
  serve.most = options_.sizes;
  serve.self = options_.self;
  serve.self_incarnation = options_.self_incarnation;
  serve.digests = options_.digests;
  serve.stage_bytes = options_.stage_bytes;
  serve.pull_bytes = options_.pull_bytes;
  serve.parts_bytes = options_.parts_bytes;
  serve.trace = options_.trace;
  serve.allow_pull = options_.allow_pull;
  serve.link_newest = options_.link_newest;
  serve.on_drained = [this] { hub_->poller()->FlushThisTurn(this); };
  auto channel =
      std::make_unique<ShmServeChannel>(hub_.get(), source_, std::move(serve), hello, offer);
  auto answer = channel->Invite();
  if (answer.ok()) {
    serving_.push_back(std::move(channel));
  } else {
    channel->Close(answer.status());
  }
  std::move(done)(std::move(answer));
}

void ShmPath::Maintain() {
  for (auto& channel : serving_) channel->EndIfNotJoined();
  Reap();
  arena_->Trim();
}

void ShmPath::Reap() {
  for (auto& channel : serving_) {
    if (!channel->Drained()) continue;
    counters_ += channel->counters();
    channel.reset();
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
}

void ShmPath::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  close_status_ = why;
  for (auto& channel : serving_) channel->Close(why);
  for (WaitingHello& one : std::exchange(waiting_, {})) std::move(one.done)(why);
}

bool ShmPath::Drained() const {
  return closed_ && std::all_of(serving_.begin(), serving_.end(),
                                [](const auto& channel) { return channel->Drained(); });
}

std::string ShmPath::ExplainServing(const std::string& consumer) const {
  std::string out;
  for (const auto& channel : serving_) {
    if (consumer.empty() || channel->consumer() == consumer) {
      absl::StrAppend(&out, channel->Explain(), "\n");
    }
  }
  return out;
}

ShmServeCounters ShmPath::serve_counters() const {
  ShmServeCounters sum = counters_;
  for (const auto& channel : serving_) sum += channel->counters();
  return sum;
}

}  // namespace tryst
