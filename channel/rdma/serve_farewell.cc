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
  // Takes first, so that none of them meets what goes back.
  for (ServeOp& op : ops_) {
    if (op.state != ServeState::kTaking) continue;
    TRYST_REACHED("sim: a farewell crosses a take");
    Release(&op);
  }
  takes_.SetEpoch(0);
  takes_.DropUnspoken();  // Nobody has had any of them.
  for (const Farewell::Wanted& wanted : farewell.wanted) {
    if (farewell.session != session_ || wanted.slot >= ops_.size()) {
      TRYST_REACHED("rare: a farewell of another session");
      continue;
    }
    ServeOp* op = &ops_[wanted.slot];
    if (op->state == ServeState::kFree || op->request.generation != wanted.generation) continue;
    TRYST_REACHED("sim: a farewell wants back what was taken for it");
    GiveBack(op);
    Release(op);
  }
  for (ServeOp& op : ops_) {
    if (op.state != ServeState::kFree) GiveUp(&op);  // It has landed, or was given up.
  }
  FinishFarewell();
}

// When no take is under way any more: what one of them has met is back, too.
void ServeChannel::FinishFarewell() {
  if (!farewell_ || !takes_.idle()) {
    if (farewell_) TRYST_REACHED("rare: a farewell waits for takes");
    return;
  }
  std::pair<Hello, HelloDone> answer = *std::move(farewell_);
  farewell_.reset();
  std::move(answer.second)(std::move(answer.first));
}

}  // namespace tryst
