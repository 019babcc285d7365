#include "channel/rdma/serve_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

// What its owner uses. What follows is told by event: serve_connection.cc,
// serve_receiving.cc, serve_sending.cc, serve_farewell.cc.
namespace tryst {
namespace {

ServeSlotsOptions SlotsOf(const ServeChannelOptions& options, const std::string& consumer,
                          const void* watched) {
  ServeSlotsOptions slots;
  slots.consumer = consumer;
  slots.path = options.path;
  slots.generation_bits = 16;
  slots.max_parked = options.max_parked;
  slots.max_keys = wire::kMaxKeys;
  slots.max_key_bytes = wire::kMaxKeyBytes;
  slots.max_keys_bytes = wire::kMaxKeysBytes;
  slots.tickets_a_word = wire::kMaxTickets;
  slots.trace = options.trace;
  slots.watch = options.link.watch;
  slots.watched = watched;
  return slots;
}

}  // namespace

ServeChannel::ServeChannel(QueueHub* hub, TensorSource* source, ServeChannelOptions options,
                           const Hello& consumer, uint64_t session)
    : hub_(hub),
      options_(std::move(options)),
      consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      session_(session),
      leftovers_(hub->poller()),
      slots_(hub->poller(), source, this, SlotsOf(options_, consumer_, this), &counters_),
      answers_(hub, &options_, &slots_, &counters_) {
  slots_.set_trace_number(session);
}

ServeChannel::~ServeChannel() {
  TRYST_CHECK(Drained()) << Explain();
  if (options_.link.watch != nullptr) options_.link.watch->OnEndGone(this);
}

void ServeChannel::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  hub_->poller()->CancelTimer(this);
  if (next_hello_) {
    std::move(next_hello_->second)(why);
    next_hello_.reset();
  }
  if (farewell_) {
    std::move(farewell_->second)(why);
    farewell_.reset();
  }
  if (link_ != nullptr) link_->Break(why);
  slots_.StopWatching();
  slots_.DropTakes();
  slots_.EndAll();
}

bool ServeChannel::Drained() const { return closed_ && link_ == nullptr && slots_.takes_idle(); }

PathView ServeChannel::View() const {
  LiveOps ops(0);
  ListOps(&ops);
  PathView view;
  view.role = TraceRole::kServe;
  view.peer = consumer_;
  view.path = options_.path;
  view.in_use = true;
  if (link_ == nullptr) {
    view.state = "not connected";
  } else {
    view.health = link_->broken() ? PathHealth::kFailing : PathHealth::kWorking;
    view.state = link_->broken() ? "draining" : "connected";
  }
  view.since_ns = state_since_ns_;
  view.epoch = epoch_;
  view.under_way = ops.left_out();
  return view;
}

std::string ServeChannel::Explain() const {
  return absl::StrCat(consumer_, " fetches from us over ", options_.path, ": ", View().state,
                      ", epoch ", epoch_, slots_.Explain(": ", "; "));
}

}  // namespace tryst
