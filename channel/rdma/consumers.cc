#include "channel/rdma/consumers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/rdma/farewell.h"

namespace tryst {

Consumers::Consumers(const TransportContext* context, const NicPath* path,
                     const RdmaOptions* options)
    : context_(context), path_(path), options_(options), next_session_(context->seed) {}

template <typename IsOver>
void Consumers::End(IsOver is_over, const absl::Status& why) {
  for (auto& channel : serving_) {
    if (!is_over(*channel)) continue;
    channel->Close(why);
    closing_.push_back(std::move(channel));
  }
  serving_.erase(std::remove(serving_.begin(), serving_.end(), nullptr), serving_.end());
}

void Consumers::NotePeer(const std::string& worker, uint64_t incarnation) {
  End(
      [&](const ServeChannel& channel) {
        return channel.consumer() == worker && channel.consumer_incarnation() != incarnation;
      },
      absl::AbortedError(absl::StrCat(
          worker, " has restarted: what its earlier process had asked for is dropped")));
}

void Consumers::OnHello(QueueHub* hub, const Hello& hello, HelloDone done) {
  if (hello.queue_pairs.empty()) return AnswerFarewell(hello, std::move(done));
  ServeChannel* channel = Find(hello);
  if (channel == nullptr) {
    if (serving_.size() >= options_->max_consumers) {
      return std::move(done)(absl::ResourceExhaustedError(absl::StrCat(
          options_->max_consumers,
          " consumers are connected, which is the most that max_peers allows: raise max_peers")));
    }
    serving_.push_back(Make(hub, hello));
    channel = serving_.back().get();
  }
  channel->OnHello(hello, std::move(done));
}

ServeChannel* Consumers::Find(const Hello& hello) const {
  auto at = std::find_if(serving_.begin(), serving_.end(),
                         [&](const auto& channel) { return channel->consumer() == hello.worker; });
  return at == serving_.end() ? nullptr : at->get();
}

std::unique_ptr<ServeChannel> Consumers::Make(QueueHub* hub, const Hello& hello) {
  ServeChannelOptions options;
  options.link = options_->link;
  options.link.digests &= path_->digests;
  options.path = path_->path;
  options.self = context_->self;
  options.self_incarnation = context_->incarnation;
  options.eager_bytes = options_->eager_bytes;
  options.stripe_bytes = options_->stripe_bytes;
  options.write_bytes = options_->write_bytes;
  options.retain_ms = options_->retain_ms;
  options.max_parked = options_->max_waiting;
  options.trace = context_->trace;
  if (++next_session_ == 0) ++next_session_;
  return std::make_unique<ServeChannel>(hub, context_->source, std::move(options), hello,
                                        next_session_);
}

void Consumers::AnswerFarewell(const Hello& hello, HelloDone done) {
  auto farewell = DecodeFarewell(hello.parameters);
  if (!farewell.ok()) return std::move(done)(farewell.status());
  if (ServeChannel* channel = Find(hello)) {
    return channel->OnFarewell(hello, *farewell, std::move(done));
  }
  // We know nothing of that connection, so nothing is kept; but the answer shows that we are up.
  Hello answer;
  answer.worker = context_->self;
  answer.incarnation = context_->incarnation;
  answer.epoch = hello.epoch;
  answer.path = hello.path;
  std::move(done)(std::move(answer));
}

void Consumers::Maintain() {
  End(
      [this](const ServeChannel& channel) {
        if (!channel.Abandoned()) return false;
        TRYST_LOG(Warning) << channel.consumer() << " did not come back within "
                           << options_->retain_ms << " ms: what it had asked for is dropped";
        return true;
      },
      absl::UnavailableError("the consumer's connection broke and it did not come back"));
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(),
                                [](const auto& channel) { return channel->Drained(); }),
                 closing_.end());
}

void Consumers::Close(const absl::Status& why) {
  End([](const ServeChannel&) { return true; }, why);
}

bool Consumers::Drained() const {
  return serving_.empty() && std::all_of(closing_.begin(), closing_.end(),
                                         [](const auto& channel) { return channel->Drained(); });
}

void Consumers::Explain(const std::string& peer, std::string* out) const {
  for (const auto& channel : serving_) {
    if (peer.empty() || channel->consumer() == peer) {
      absl::StrAppend(out, channel->Explain(), "\n");
    }
  }
}

void Consumers::View(const std::string& peer, std::vector<PathView>* views) const {
  for (const auto& channel : serving_) {
    if (!peer.empty() && channel->consumer() != peer) continue;
    views->push_back(channel->View());
  }
}

void Consumers::ListOps(LiveOps* ops) const {
  for (const auto& channel : serving_) channel->ListOps(ops);
  for (const auto& channel : closing_) channel->ListOps(ops);
}

ServeCounters Consumers::counters() const {
  ServeCounters sum;
  for (const auto& channel : serving_) sum += channel->counters();
  return sum;
}

}  // namespace tryst
