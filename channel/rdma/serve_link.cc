#include "channel/rdma/serve_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/ops/limits.h"

// The links of a RdmaServeLink, one after the other. serve_receiving.cc has what goes over them.
namespace tryst {

RdmaServeLink::RdmaServeLink(ServeSession* session, QueueHub* hub, const RdmaOptions& options)
    : session_(session),
      slots_(*session->slots()),
      hub_(hub),
      options_(options),
      leftovers_(hub->poller()),
      answers_(hub, &options_, &slots_, session->counters()) {
  // Those that another kind of link has left us may end before we are open.
  if (slots_.made()) answers_.Make(slots_.size());
}

ServeKind RdmaServeLink::Kind(const std::string& path, QueueHub* hub, const RdmaOptions& options) {
  return {path, [hub, options](ServeSession* session) {
            return std::make_unique<RdmaServeLink>(session, hub, options);
          }};
}

absl::Status RdmaServeLink::Open(const Hello& hello, Hello* answer) {
  auto parameters = wire::DecodeParameters(hello.parameters);
  if (!parameters.ok()) return parameters.status();
  // A session keeps the slots that its first link had; ours does not know it if we were restarted.
  const size_t most_slots =
      slots_.made() ? slots_.size() : std::max(options_.link.slots, limits::kUsedSlots);
  const bool fits = hello.queue_pairs.size() >= 1 && hello.queue_pairs.size() <= kMaxLanes &&
                    parameters->slots <= most_slots &&
                    parameters->message_bytes <= options_.link.message_bytes &&
                    (!slots_.made() || slots_.size() == parameters->slots);
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the consumer asks for a connection with ", parameters->slots, " slots, messages of ",
        parameters->message_bytes, " bytes and ", hello.queue_pairs.size(),
        " queue pairs; this worker allows at most ", most_slots, ", ", options_.link.message_bytes,
        " and ", kMaxLanes, ": set queue_pairs alike on both, and run the same release"));
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
  answered_ = false;
  arrives_at_.fill(0);
  session_->OnLinkOpen(hello.epoch);
  answers_.Use(link_.get(), options_.link.digests || parameters->digests);
  slots_.Make(parameters->slots);
  answers_.Make(parameters->slots);
  link_->DescribeTo(answer, session_->number());
  return absl::OkStatus();
}

void RdmaServeLink::OnBroken(const absl::Status& why) {
  session_->OnLinkBroken(why);
  pong_due_ = false;
  for (size_t i = 0; i < ready_line_.size(); ++i) ready_line_[i]->in_ready_line = false;
  ready_line_.clear();
  leftovers_.OnBroken();
}

void RdmaServeLink::OnDrained() {
  link_.reset();
  leftovers_.OnDrained();
  answers_.OnDrained();
  session_->OnLinkGone();
}

void RdmaServeLink::View(PathView* view) const {
  if (link_ == nullptr) return;
  view->health = link_->broken() ? PathHealth::kFailing : PathHealth::kWorking;
  view->state = link_->broken() ? "draining" : "connected";
}

}  // namespace tryst
