#include "channel/rdma/serve_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

// What its owner uses. What follows is told by event: serve_connection.cc,
// serve_receiving.cc, serve_take.cc, serve_parking.cc, serve_farewell.cc.
namespace tryst {

ServeChannel::ServeChannel(QueueHub* hub, TensorSource* source, ServeChannelOptions options,
                           const Hello& consumer, uint64_t session)
    : hub_(hub),
      source_(source),
      options_(std::move(options)),
      consumer_(consumer.worker),
      consumer_incarnation_(consumer.incarnation),
      session_(session),
      track_(options_.trace == nullptr
                 ? nullptr
                 : options_.trace->Track(TraceRole::kServe, consumer_, options_.path)),
      keys_(consumer_, wire::kMaxKeys, wire::kMaxKeyBytes, wire::kMaxKeysBytes),
      leftovers_(hub->poller()),
      answers_(hub, &options_, &counters_, [this](ServeOp* op) { GiveBack(op); }),
      takes_(hub->poller(), source, this, consumer_, options_.max_parked, &counters_.given_back) {}

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
  for (ServeOp& op : ops_) {
    if (op.state != ServeState::kFree) GiveUp(&op);
  }
  takes_.SetEpoch(0);
  takes_.DropUnspoken();
}

bool ServeChannel::Drained() const { return closed_ && link_ == nullptr && takes_.idle(); }

void ServeChannel::ListOps(LiveOps* ops) const {
  for (const ServeOp& op : ops_) {
    if (op.state == ServeState::kFree) continue;
    LiveOp live;
    live.role = TraceRole::kServe;
    live.peer = consumer_;
    live.path = options_.path;
    live.step = op.request.body.step;
    live.key = op.request.key;
    live.span = op.span;
    if (op.source.tensor.valid()) live.bytes = op.source.tensor.bytes();
    ops->Add(std::move(live));
  }
  LiveOp parked;
  parked.peer = consumer_;
  parked.path = options_.path;
  takes_.ListOps(parked, ops);
}

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
  size_t by_state[kServeStateCount] = {};
  for (const ServeOp& op : ops_) ++by_state[static_cast<size_t>(op.state)];
  std::string waiting;
  for (size_t i = 1; i < kServeStateCount; ++i) {
    if (by_state[i] == 0) continue;
    absl::StrAppend(&waiting, waiting.empty() ? ": " : "; ", by_state[i], " ",
                    ServeStateName(static_cast<ServeState>(i)));
  }
  if (takes_.parked() > 0) {
    absl::StrAppend(&waiting, waiting.empty() ? ": " : "; ", takes_.parked(),
                    " waits without a slot for the local Send");
  }
  return absl::StrCat(consumer_, " fetches from us over ", options_.path, ": ", View().state,
                      ", epoch ", epoch_, waiting);
}

}  // namespace tryst
