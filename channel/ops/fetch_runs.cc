#include "channel/ops/fetch_runs.h"

#include <algorithm>

#include "base/release_memory.h"

namespace tryst {

FetchRun* FetchRuns::Take(int64_t step) {
  if (free_.empty()) {
    all_.push_back(std::make_unique<FetchRun>());
    free_.push_back(all_.back().get());
  }
  out_.push_back(free_.back());
  free_.pop_back();
  out_.back()->step = step;
  return out_.back();
}

void FetchRuns::Free(FetchRun* run) {
  out_.erase(std::find(out_.begin(), out_.end(), run));
  run->keys.clear();
  run->ops.clear();
  run->places.clear();
  run->into.clear();
  run->not_here.clear();
  run->bytes = 0;
  run->join = nullptr;
  run->taken = run->apart = false;
  free_.push_back(run);
}

FetchKey* FetchRuns::NameOf(FetchKeys* keys, FetchRun* run) {
  uint64_t hash = run->keys.size();
  for (const FetchKey* key : run->keys) hash = (hash ^ key->id) * 0x9e3779b97f4a7c15u;
  const auto found = names_.find(hash);
  if (found != names_.end() && found->second.numbers == keys->numbers_lost() &&
      found->second.of == run->keys) {
    return found->second.key;
  }
  if (names_.size() >= kMostNames) names_.clear();
  FetchKey* const key = keys->NewRun(run->keys);
  // Its own number may have been another key's.
  if (key != nullptr) names_.insert_or_assign(hash, Name{run->keys, key, keys->numbers_lost()});
  return key;
}

void FetchRuns::NoteAnswer(size_t keys, size_t not_here) {
  if (2 * not_here <= keys) {
    pause_ = 0;
    return;
  }
  pause_ = pause_ == 0 ? kFirstPause : std::min(2 * pause_, kLongestPause);
  pause_left_ = pause_;
}

void FetchRuns::Clear() {
  ReleaseMemory(&all_);
  ReleaseMemory(&free_);
  ReleaseMemory(&names_);
}

}  // namespace tryst
