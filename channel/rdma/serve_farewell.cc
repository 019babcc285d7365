#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reached.h"
#include "channel/rdma/serve_channel.h"

// The farewell of a consumer that goes on by another path.
namespace tryst {

void ServeChannel::OnFarewell(const Hello& hello, const Farewell& farewell, HelloDone done) {
  if (closed_) return std::move(done)(absl::UnavailableError("the producer is stopping"));
  const absl::Status fresh = StartEpoch(hello);
  if (!fresh.ok()) return std::move(done)(fresh);
  epoch_ = hello.epoch;
  Hello answer;
  answer.worker = options_.self;
  answer.incarnation = options_.self_incarnation;
  answer.epoch = epoch_;
  answer.path = options_.path;
  answer.parameters = EncodeFarewell({session_, {}});
  farewell_.emplace(std::move(answer), std::move(done));
  // What it still has under way to us must no longer be heard: it asks anew elsewhere.
  if (link_ != nullptr) {
    link_->Break(absl::UnavailableError(absl::StrCat(
        consumer_, " has moved its fetches from this path to another: ", options_.path)));
  }
  if (options_.link.watch != nullptr) options_.link.watch->OnServeFarewell(this);
  if (std::any_of(slots_.begin(), slots_.end(),
                  [](const ServeOp& op) { return op.state == ServeState::kTaking; })) {
    TRYST_REACHED("sim: a farewell crosses a take");
  }
  slots_.DropTakes();
  for (const Farewell::Wanted& wanted : farewell.wanted) {
    if (farewell.session != session_ || wanted.slot >= slots_.size()) {
      TRYST_REACHED("rare: a farewell of another session");
      continue;
    }
    ServeOp* op = slots_.at(wanted.slot);
    if (op->state == ServeState::kFree || op->generation != wanted.generation) continue;
    TRYST_REACHED("sim: a farewell wants back what was taken for it");
    slots_.End(op, ServeEvent::kNotAccepted);
  }
  slots_.EndAll();  // The rest has landed, or was given up.
  FinishFarewell();
}

// When no take is under way any more: what one of them has met is back, too.
void ServeChannel::FinishFarewell() {
  if (!farewell_ || !slots_.takes_idle()) {
    if (farewell_) TRYST_REACHED("rare: a farewell waits for takes");
    return;
  }
  std::pair<Hello, HelloDone> answer = *std::move(farewell_);
  farewell_.reset();
  std::move(answer.second)(std::move(answer.first));
}

}  // namespace tryst
