#include "channel/ops/deliveries.h"

#include <utility>

namespace tryst {

FetchJoin* Deliveries::NewJoin(size_t count, const RecvArgs& args, ManyFetchedFn done) {
  if (free_joins_.empty()) free_joins_.push_back(&joins_.emplace_back());
  FetchJoin* join = free_joins_.back();
  free_joins_.pop_back();
  join->args = args;
  join->args.destinations = {};  // Each fetch has its own.
  join->done = std::move(done);
  join->results.resize(count);
  join->left = count;
  if (count == 0) {
    undelivered_joins_.push_back(join);
    poller_->FlushThisTurn(this);
  }
  return join;
}

void Deliveries::Deliver(FetchOp* op, absl::Status&& status, Tensor&& tensor, bool is_dead,
                         When when) {
  if (op->join != nullptr) {
    FetchJoin* const join = op->join;
    Received& received = join->results[op->index];
    if (!status.ok()) received.status = std::move(status);
    if (tensor.valid()) received.tensor = std::move(tensor);
    received.is_dead = is_dead;
    if (op->args.destination.valid()) op->args.destination.Reset();
    owner_->OnOpDelivered(op);
    return NoteResults(join, 1, when);
  }
  op->received.status = std::move(status);
  op->received.tensor = std::move(tensor);
  op->received.is_dead = is_dead;
  if (when == When::kNow && undelivered_.empty() && TryDeliver(op)) return;
  undelivered_.Push(op);
  poller_->FlushThisTurn(this);
}

void Deliveries::NoteResults(FetchJoin* join, size_t count, When when) {
  join->left -= count;
  if (join->left > 0) return;
  if (when == When::kNow && TryDeliver(join)) return;
  undelivered_joins_.push_back(join);
  poller_->FlushThisTurn(this);
}

FetchedFn Deliveries::BackToJoin(FetchOp* op) {
  return [this, join = op->join, index = op->index](Received&& result) {
    poller_->PostFn([this, join, index, received = std::move(result)]() mutable {
      join->results[index] = std::move(received);
      NoteResults(join, 1, When::kAtEndOfTurn);
    });
  };
}

bool Deliveries::TryDeliver(FetchOp* op) {
  Executor* executor = op->args.executor;
  if (executor == nullptr) {
    op->Deliver();
    owner_->OnOpDelivered(op);
    return true;
  }
  Executor::Work work([op, poller = poller_] { op->DeliverFrom(poller); });
  return executor->TryRun(&work);
}

bool Deliveries::TryDeliver(FetchJoin* join) {
  const auto deliver = [this, join] {
    absl::Status first;
    for (const Received& received : join->results) {
      if (first.ok() && !received.status.ok()) first = received.status;
    }
    ManyFetchedFn done = std::move(join->done);
    join->done = nullptr;
    std::move(done)(std::move(first), absl::MakeSpan(join->results));
    for (Received& received : join->results) {
      received.tensor.Reset();
      if (!received.status.ok()) received.status = absl::OkStatus();
    }
    join->args.DropReferences();
    if (poller_->OnThread()) {
      free_joins_.push_back(join);
    } else {
      poller_->PostFn([this, join] { free_joins_.push_back(join); });
    }
  };
  Executor* executor = join->args.executor;
  if (executor == nullptr) {
    deliver();
    return true;
  }
  Executor::Work work(deliver);
  return executor->TryRun(&work);
}

void Deliveries::Flush() {
  for (size_t count = undelivered_.size(); count > 0 && !undelivered_.empty(); --count) {
    FetchOp* op = undelivered_.PopFront();
    if (TryDeliver(op)) continue;
    undelivered_.Push(op);  // It is tried again in the next turn.
    poller_->FlushThisTurn(this);
  }
  for (size_t count = undelivered_joins_.size(); count > 0; --count) {
    FetchJoin* join = undelivered_joins_.front();
    undelivered_joins_.pop_front();
    if (TryDeliver(join)) continue;
    undelivered_joins_.push_back(join);
    poller_->FlushThisTurn(this);
  }
}

}  // namespace tryst
