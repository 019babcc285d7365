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
  serving_.clear();
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
  Reap();
  // One link to a consumer: a new one says that the former is over.
  for (auto& channel : serving_) {
    if (channel->consumer() == hello.worker && !channel->ended()) {
      channel->Close(absl::UnavailableError("the consumer opens another link"));
    }
  }
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
  serve.trace = options_.trace;
  serve.allow_pull = options_.allow_pull;
  auto channel =
      std::make_unique<ShmServeChannel>(hub_.get(), source_, std::move(serve), hello, *offer);
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
