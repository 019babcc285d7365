#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reached.h"
#include "channel/rdma/serve_channel.h"

// The connection of a ServeChannel: hellos, breaks, and a consumer that does not return.
namespace tryst {

// Starts an epoch. Nothing may wait for messages of an earlier one.
absl::Status ServeChannel::StartEpoch(const Hello& hello) {
  if (hello.epoch <= epoch_ || (next_hello_ && hello.epoch <= next_hello_->first.epoch)) {
    TRYST_REACHED("sim: a hello of an older epoch");
    return absl::AbortedError(
        absl::StrCat("connection ", hello.epoch, " is over: ", epoch_, " was opened since"));
  }
  const absl::Status newer =
      absl::AbortedError("the consumer has asked to open a newer connection");
  if (next_hello_) {
    TRYST_REACHED("rare: a hello comes while one waits for the drain");
    std::move(next_hello_->second)(newer);
    next_hello_.reset();
  }
  if (farewell_) {
    TRYST_REACHED("rare: a hello comes while a farewell waits for its takes");
    std::move(farewell_->second)(newer);
    farewell_.reset();
  }
  return absl::OkStatus();
}

void ServeChannel::OnHello(const Hello& hello, HelloDone done) {
  if (closed_) return std::move(done)(absl::UnavailableError("the producer is stopping"));
  const absl::Status fresh = StartEpoch(hello);
  if (!fresh.ok()) return std::move(done)(fresh);
  if (link_ == nullptr) return AcceptHello(hello, std::move(done));
  TRYST_REACHED("sim: a hello comes while the former link lives");
  next_hello_.emplace(hello, std::move(done));
  link_->Break(absl::UnavailableError(
      absl::StrCat(consumer_, " opened connection ", hello.epoch, ", which replaces this one")));
}

// From now on the consumer has so long to come, or to come back.
void ServeChannel::WaitForConsumer() {
  if (closed_ || is_set()) return;
  hub_->poller()->SetTimer(this, hub_->poller()->now_ns() + options_.retain_ms * 1'000'000);
}

void ServeChannel::AcceptHello(const Hello& hello, HelloDone done) {
  WaitForConsumer();  // Unless this hello brings it.
  auto parameters = wire::DecodeParameters(hello.parameters);
  if (!parameters.ok()) return std::move(done)(parameters.status());
  const bool fits = hello.queue_pairs.size() >= 1 && hello.queue_pairs.size() <= kMaxLanes &&
                    parameters->slots <= options_.link.slots &&
                    parameters->message_bytes <= options_.link.message_bytes &&
                    (!slots_.made() || slots_.size() == parameters->slots);
  if (!fits) {
    return std::move(done)(absl::InvalidArgumentError(
        absl::StrCat("the consumer asks for a connection with ", parameters->slots,
                     " slots, messages of ", parameters->message_bytes, " bytes and ",
                     hello.queue_pairs.size(), " queue pairs; this worker allows at most ",
                     options_.link.slots, ", ", options_.link.message_bytes, " and ", kMaxLanes,
                     ": set slots, message_bytes and queue_pairs alike on both")));
  }
  LinkOptions link_options = options_.link;
  link_options.slots = parameters->slots;
  link_options.message_bytes = parameters->message_bytes;
  link_options.ring_slots = std::min(parameters->ring_slots, options_.link.ring_slots);
  link_options.queue_pairs = static_cast<uint32_t>(hello.queue_pairs.size());
  epoch_ = hello.epoch;
  auto link = MessageLink::Create(hub_, link_options, static_cast<uint32_t>(epoch_), this);
  if (!link.ok()) return std::move(done)(link.status());
  const absl::Status connected = (*link)->Connect(hello);
  if (!connected.ok()) return std::move(done)(connected);
  link_ = *std::move(link);
  slots_.Connect(epoch_);
  state_since_ns_ = hub_->poller()->now_ns();
  answers_.Use(link_.get(), options_.link.digests || parameters->digests);
  slots_.Make(parameters->slots);
  answers_.Make(parameters->slots);
  hub_->poller()->CancelTimer(this);
  abandoned_ = false;

  Hello answer;
  answer.worker = options_.self;
  answer.incarnation = options_.self_incarnation;
  answer.epoch = epoch_;
  answer.path = options_.path;
  link_->DescribeTo(&answer, session_);
  std::move(done)(std::move(answer));
}

void ServeChannel::OnBroken(const absl::Status& why) {
  const bool idle = std::all_of(slots_.begin(), slots_.end(), [](const ServeOp& op) {
    return op.state == ServeState::kFree || op.state == ServeState::kSent;
  });
  // The loss of an idle connection is not logged, because a consumer that stops causes it, too.
  if (!closed_ && !next_hello_ && !farewell_ && !idle) {
    TRYST_LOG(Warning) << options_.self << " lost the " << options_.path << " connection of "
                       << consumer_ << " (epoch " << epoch_ << "): " << why.message();
  }
  state_since_ns_ = hub_->poller()->now_ns();
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
  if (next_hello_) {
    std::pair<Hello, HelloDone> next = *std::move(next_hello_);
    next_hello_.reset();
    return AcceptHello(next.first, std::move(next.second));
  }
  WaitForConsumer();
}

void ServeChannel::OnTimer() {
  TRYST_REACHED("rare: the consumer does not come back");
  abandoned_ = true;
}

}  // namespace tryst
