#include "rendezvous/kept_tensors.h"

#include <cstring>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr size_t kMostKept = 1024;  // Keys for which tensors are kept.

}  // namespace

Tensor Apart(Tensor tensor) {
  if (tensor.dtype() == DType::kString || !tensor.on_host()) return tensor;
  const auto own = Tensor::Allocate(tensor.dtype(), tensor.shape());
  if (!own.ok()) return tensor;
  if (tensor.bytes() > 0) memcpy(own->mutable_data(), tensor.data(), tensor.bytes());
  return *own;
}

absl::Status KeptTensors::Admit(const Place& place) {
  MutexLock lock(&mu_);
  if (kept_.size() < kMostKept || kept_.contains(place)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "tensors of ", kept_.size(),
      " keys have come that their receives could not use, for lack of memory or for "
      "another destination: receive those again, or end their steps, and then receive ",
      place.second.text()));
}

void KeptTensors::Keep(const Place& place, KeptTensor kept) {
  MutexLock lock(&mu_);
  kept_[place].push_front(std::move(kept));
  Count();
}

bool KeptTensors::Keeps(const Place& place) {
  MutexLock lock(&mu_);
  return kept_.contains(place);
}

KeptTensor KeptTensors::TakeFirst(const Place& place) {
  MutexLock lock(&mu_);
  const auto found = kept_.find(place);
  if (found == kept_.end()) return KeptTensor();
  KeptTensor first = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) kept_.erase(found);
  Count();
  return first;
}

KeptTensor KeptTensors::FirstBefore(const Place& place, KeptTensor came) {
  MutexLock lock(&mu_);
  const auto found = kept_.find(place);
  if (found == kept_.end()) return came;
  found->second.push_back(std::move(came));
  KeptTensor first = std::move(found->second.front());
  found->second.pop_front();
  return first;
}

void KeptTensors::DropStep(int64_t step_id) {
  std::vector<std::deque<KeptTensor>> dropped;  // Released without the lock.
  MutexLock lock(&mu_);
  for (auto at = kept_.begin(); at != kept_.end();) {
    const auto next = std::next(at);
    if (at->first.first == step_id) {
      dropped.push_back(std::move(at->second));
      kept_.erase(at);
    }
    at = next;
  }
  Count();
}

}  // namespace tryst
