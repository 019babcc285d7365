#include "rendezvous/kept_tensors.h"

#include <iterator>
#include <vector>

namespace tryst {
namespace {

constexpr size_t kMostKept = 1024;  // Keys for which tensors are kept.

}  // namespace

void KeptTensors::Keep(const Place& place, Tensor tensor) {
  std::deque<Tensor> dropped;  // Released without the lock.
  MutexLock lock(&mu_);
  // Only of steps that have ended meanwhile may there be so many.
  if (kept_.size() >= kMostKept) {
    dropped = std::move(kept_.begin()->second);
    kept_.erase(kept_.begin());
  }
  kept_[place].push_front(std::move(tensor));
}

Tensor KeptTensors::TakeFirst(const Place& place) {
  MutexLock lock(&mu_);
  const auto found = kept_.find(place);
  if (found == kept_.end()) return Tensor();
  Tensor first = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) kept_.erase(found);
  return first;
}

Tensor KeptTensors::FirstBefore(const Place& place, Tensor tensor) {
  MutexLock lock(&mu_);
  const auto found = kept_.find(place);
  if (found == kept_.end()) return tensor;
  found->second.push_back(std::move(tensor));
  Tensor first = std::move(found->second.front());
  found->second.pop_front();
  return first;
}

void KeptTensors::DropStep(int64_t step_id) {
  std::vector<std::deque<Tensor>> dropped;  // Released without the lock.
  MutexLock lock(&mu_);
  for (auto at = kept_.begin(); at != kept_.end();) {
    const auto next = std::next(at);
    if (at->first.first == step_id) {
      dropped.push_back(std::move(at->second));
      kept_.erase(at);
    }
    at = next;
  }
}

}  // namespace tryst
