#include "tests/sim/direct_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "channel/trace/live_ops.h"
#include "rendezvous/derived_status.h"

namespace tryst {
namespace {

constexpr int64_t kWayNs = 200'000;

}  // namespace

struct DirectChannel::Op {
  int64_t step_id = 0;
  TensorKey key;
  RecvArgs args;
  DoneFn done;
  bool ended = false;
  bool taking = false;
  bool has_taken = false;
  Cancellation take;  // Ours, of the producer's take.
  Received taken;
  Cancellation::Token token = Cancellation::kNoToken;
  TraceSpan span;
};

DirectChannel::DirectChannel(SimWorld* world, std::string peer, FindSource find_source)
    : world_(world), peer_(std::move(peer)), find_source_(std::move(find_source)) {}

DirectChannel::~DirectChannel() { TRYST_CHECK(out_.empty()); }

void DirectChannel::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                          DoneFn&& done) {
  auto op = std::make_shared<Op>();
  op->step_id = step_id;
  op->key = key;
  op->args = args;
  op->done = std::move(done);
  op->span.Begin(WaitsFor::kPeerSend, world_->NowNs());
  out_.insert(op);
  if (closed_) return EndSoon(op, why_closed_);
  if (args.cancellation != nullptr) {
    op->token = args.cancellation->Register(
        [this, op] { EndSoon(op, MarkDerived(absl::CancelledError("the fetch is cancelled"))); });
    if (op->token == Cancellation::kNoToken) {
      return EndSoon(op, MarkDerived(absl::CancelledError("the fetch is cancelled")));
    }
  }
  if (!args.deadline.is_never()) {
    world_->At(std::max(args.deadline.at_ns(), world_->NowNs()), [this, op] {
      if (!op->ended) End(op, absl::DeadlineExceededError("directly"), Tensor(), false);
    });
  }
  last_ns_ = std::max(last_ns_ + 1, world_->NowNs() + kWayNs);
  world_->At(last_ns_, [this, op] {
    if (!op->ended) Ask(op);
  });
}

void DirectChannel::Ask(const std::shared_ptr<Op>& op) {
  TensorSource* source = find_source_();
  if (source == nullptr) return End(op, absl::UnavailableError("not up"), Tensor(), false);
  op->taking = true;
  RecvArgs args;
  args.cancellation = &op->take;
  source->Take(op->step_id, op->key, args, [this, op](Received&& received) {
    op->taking = false;
    op->taken = std::move(received);
    OnTaken(op, op->taken.status);
  });
}

void DirectChannel::OnTaken(const std::shared_ptr<Op>& op, absl::Status status) {
  if (op->ended) {
    if (status.ok()) GiveBack(op.get());
    return;
  }
  if (status.code() == absl::StatusCode::kCancelled) {
    status = absl::UnavailableError("the producer is gone");  // Not we have cancelled it.
  }
  op->has_taken = status.ok();
  world_->At(world_->NowNs() + kWayNs, [this, op, status] {
    if (op->ended) return;
    op->has_taken = false;
    End(op, status, op->taken.tensor, op->taken.is_dead);
  });
}

void DirectChannel::GiveBack(Op* op) {
  TensorSource* source = find_source_();
  if (source != nullptr) source->GiveBack(op->step_id, op->key, std::move(op->taken));
}

void DirectChannel::EndSoon(const std::shared_ptr<Op>& op, const absl::Status& why) {
  world_->At(world_->NowNs(), [this, op, why] {
    if (!op->ended) End(op, why, Tensor(), false);
  });
}

void DirectChannel::End(const std::shared_ptr<Op>& op, absl::Status status, Tensor tensor,
                        bool is_dead) {
  op->ended = true;
  if (op->token != Cancellation::kNoToken) op->args.cancellation->Deregister(op->token);
  if (op->taking) op->take.StartCancel();
  if (op->has_taken) GiveBack(op.get());
  const Tensor& wanted = op->args.destination;
  if (status.ok() && !is_dead && wanted.valid() && tensor.dtype() != DType::kString) {
    if (wanted.dtype() != tensor.dtype() || wanted.shape() != tensor.shape()) {
      status = absl::InvalidArgumentError("the destination is of another shape");
      op->taken.tensor = std::move(tensor);
      GiveBack(op.get());
      tensor = Tensor();
    } else {
      memcpy(wanted.mutable_data(), tensor.data(), tensor.bytes());
      tensor = wanted;
    }
  }
  out_.erase(op);
  auto run = [op, status, tensor, is_dead]() mutable {
    DoneFn done = std::move(op->done);
    std::move(done)({std::move(status), std::move(tensor), is_dead});
  };
  if (op->args.executor == nullptr) return run();
  op->args.executor->Run(std::move(run));
}

void DirectChannel::AbortStep(int64_t step_id, const absl::Status& why) {
  for (const auto& op : out_) {
    if (op->step_id == step_id) EndSoon(op, MarkDerived(why));
  }
}

void DirectChannel::ListOps(LiveOps* ops) const {
  for (const auto& op : out_) {
    LiveOp live;
    live.peer = peer_;
    live.path = "direct";
    live.step = op->step_id;
    live.key = op->key;
    live.span = op->span;
    ops->Add(std::move(live));
  }
}

void DirectChannel::Close(absl::Status why) {
  if (closed_) return;
  closed_ = true;
  why_closed_ = std::move(why);
  for (const auto& op : out_) EndSoon(op, why_closed_);
}

}  // namespace tryst
