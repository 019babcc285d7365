#include "channel/rdma/serve_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

// The links of a ServeChannel. What follows is told by event: serve_receiving.cc, serve_sending.cc.
namespace tryst {
namespace {

ServeSlotsOptions SlotsOf(const ServeChannelOptions& options) {
  ServeSlotsOptions slots;
  slots.generation_bits = 16;
  slots.max_parked = options.max_parked;
  slots.tickets_a_word = wire::kMaxTickets;
  slots.watch = options.link.watch;
  return slots;
}

}  // namespace

ServeChannel::ServeChannel(QueueHub* hub, TensorSource* source, ServeChannelOptions options,
                           const Hello& consumer, uint64_t session)
    : ServeSession(hub->poller(), source, options, SlotsOf(options), consumer, session),
      hub_(hub),
      options_(std::move(options)),
      leftovers_(hub->poller()),
      answers_(hub, &options_, &slots_, &counters_) {}

ServeChannel::~ServeChannel() { TRYST_CHECK(Drained()) << Explain(); }

absl::StatusOr<Hello> ServeChannel::OpenLink(const Hello& hello) {
  auto parameters = wire::DecodeParameters(hello.parameters);
  if (!parameters.ok()) return parameters.status();
  const bool fits = hello.queue_pairs.size() >= 1 && hello.queue_pairs.size() <= kMaxLanes &&
                    parameters->slots <= options_.link.slots &&
                    parameters->message_bytes <= options_.link.message_bytes &&
                    (!slots_.made() || slots_.size() == parameters->slots);
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("the consumer asks for a connection with ", parameters->slots,
                     " slots, messages of ", parameters->message_bytes, " bytes and ",
                     hello.queue_pairs.size(), " queue pairs; this worker allows at most ",
                     options_.link.slots, ", ", options_.link.message_bytes, " and ", kMaxLanes,
                     ": set queue_pairs alike on both, and run the same release"));
  }
  LinkOptions link_options = options_.link;
  link_options.slots = parameters->slots;
  link_options.message_bytes = parameters->message_bytes;
  link_options.ring_slots = std::min(parameters->ring_slots, options_.link.ring_slots);
  link_options.queue_pairs = static_cast<uint32_t>(hello.queue_pairs.size());
  auto link = MessageLink::Create(hub_, link_options, static_cast<uint32_t>(hello.epoch), this);
  if (!link.ok()) return link.status();
  const absl::Status connected = (*link)->Connect(hello);
  if (!connected.ok()) return connected;
  link_ = *std::move(link);
  OnLinkOpen(hello.epoch);
  answers_.Use(link_.get(), options_.link.digests || parameters->digests);
  slots_.Make(parameters->slots);
  answers_.Make(parameters->slots);
  Hello answer = NewAnswer(hello.epoch);
  link_->DescribeTo(&answer, session_);
  return answer;
}

void ServeChannel::OnBroken(const absl::Status& why) {
  // The loss of an idle connection is not logged, because a consumer that stops causes it, too.
  if (!closed() && !is_replaced() && any_unanswered()) {
    TRYST_LOG(Warning) << self_ << " lost the " << path_ << " connection of " << consumer_
                       << " (epoch " << epoch_ << "): " << why.message();
  }
  state_since_ns_ = poller_->now_ns();
  slots_.Disconnect();
  pong_due_ = false;
  for (size_t i = 0; i < ready_line_.size(); ++i) ready_line_[i]->in_ready_line = false;
  ready_line_.clear();
  leftovers_.OnBroken();
}

void ServeChannel::OnDrained() {
  link_.reset();
  leftovers_.OnDrained();
  answers_.OnDrained();
  OnLinkGone();
}

void ServeChannel::ViewLink(PathView* view) const {
  if (link_ == nullptr) return;
  view->health = link_->broken() ? PathHealth::kFailing : PathHealth::kWorking;
  view->state = link_->broken() ? "draining" : "connected";
}

}  // namespace tryst
