#include "channel/ops/fetch_turns.h"

#include <utility>

namespace tryst {

FetchOp* FetchTurns::AskedBefore(const FetchKey& key, int64_t step, const FetchOp* but) {
  for (FetchOp* before = key.asked.front(); before != nullptr; before = key.asked.Behind(before)) {
    // The peer learns of the end of a reported fetch before it gets this request.
    const bool leaves = before->reported && before->followers == nullptr;
    if (before->step == step && before != but && !leaves) return before;
  }
  return nullptr;
}

void FetchTurns::Follow(FetchOp* before, FetchOp* op) {
  if (before->followers == nullptr) {
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    before->followers = free_.back();
    free_.pop_back();
    before->followers->first = before;
  }
  Push(before->followers, op);
  while (op->followers != nullptr) {
    FetchOp* next = op->followers->line.front();
    StopFollowing(next);
    Push(before->followers, next);
  }
}

void FetchTurns::Push(FetchFollowers* line, FetchOp* op) {
  op->behind = line;
  line->line.Push(op);
}

void FetchTurns::StopFollowing(FetchOp* op) {
  FetchFollowers* line = std::exchange(op->behind, nullptr);
  if (line == nullptr) return;
  line->line.Remove(op);
  if (!line->line.empty()) return;
  line->first->followers = nullptr;
  free_.push_back(line);
}

FetchOp* FetchTurns::Succeed(FetchOp* op) {
  if (op->followers == nullptr) return nullptr;
  FetchOp* next = op->followers->line.front();
  StopFollowing(next);
  if (op->followers != nullptr) {
    next->followers = std::exchange(op->followers, nullptr);
    next->followers->first = next;
  }
  return next;
}

}  // namespace tryst
