#include "channel/ops/fetch_keys.h"

#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "base/release_memory.h"

namespace tryst {

FetchKey* FetchKeys::InternAnew(const TensorKey& key) {
  FetchKey* entry = Find(key);
  if (entry == nullptr) {
    entry = NewEntry();
    keys_.emplace(key, entry);
  }
  // The owner's present copy of the key, which it may use again.
  entry->key = key;
  Number(entry);
  key.set_note(entry->id);
  return entry;
}

FetchKey* FetchKeys::NewEntry() {
  if (free_.empty()) free_.push_back(&all_.emplace_back());
  has_many_ = all_.size() > kMany;
  FetchKey* const entry = free_.back();
  free_.pop_back();
  return entry;
}

// Its `key` has a text of its own, so that nobody takes it for the first of `of`.
FetchKey* FetchKeys::NewRun(const std::vector<FetchKey*>& of) {
  FetchKey* const entry = NewEntry();
  entry->key = *TensorKey::Parse(of.front()->key.text());
  std::vector<uint32_t> numbers(of.size());
  entry->run_text = EncodeRun(numbers);  // As long as it will be.
  GiveId(entry);
  for (size_t i = 0; i < of.size(); ++i) numbers[i] = of[i]->id;
  if (std::count(numbers.begin(), numbers.end(), FetchKey::kNoId) > 0) {
    TRYST_REACHED("rare: the name of a run takes the number of one of its keys");
    return nullptr;
  }
  entry->run_text = EncodeRun(numbers);
  return entry;
}

FetchKey* FetchKeys::Find(const TensorKey& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : found->second;
}

void FetchKeys::GiveId(FetchKey* entry) {
  const uint64_t bytes = entry->told_text().size();
  lap_bytes_ += bytes;
  if (lap_bytes_ > most_bytes_ || next_id_ == most_) {
    next_id_ = 0;
    lap_bytes_ = bytes;
  }
  const uint32_t id = next_id_++;
  if (id >= by_id_.size()) {
    by_id_.push_back(nullptr);
  } else {
    LoseId(by_id_[id]);
  }
  by_id_[id] = entry;
  entry->id = id;
  entry->told = 0;
}

void FetchKeys::LoseId(FetchKey* entry) {
  entry->id = FetchKey::kNoId;
  ++numbers_lost_;
  FreeIfUnused(entry);
}

void FetchKeys::FreeIfUnused(FetchKey* entry) {
  if (entry->id != FetchKey::kNoId || !entry->asks.empty() || entry->runs > 0) return;
  if (!entry->is_run()) keys_.erase(entry->key);
  entry->key = TensorKey();
  entry->run_text.clear();
  entry->run_item_bytes = 0;
  free_.push_back(entry);
}

void FetchKeys::LeaveRun(FetchKey* key) {
  key->out_in = nullptr;
  --key->runs;
  FreeIfUnused(key);
}

void FetchKeys::ForgetIds() {
  for (FetchKey* entry : by_id_) LoseId(entry);
  by_id_.clear();
  next_id_ = 0;
  lap_bytes_ = 0;
}

void FetchKeys::Clear() {
  ReleaseMemory(&keys_);
  ReleaseMemory(&free_);
  ReleaseMemory(&by_id_);
  ReleaseMemory(&all_);
  has_many_ = false;
  next_id_ = 0;
  lap_bytes_ = 0;
  ++numbers_lost_;
}

FetchAsk* FetchKeys::SearchAsk(const FetchKey& key, int64_t step) {
  for (FetchAsk* ask = key.asks.front(); ask != nullptr; ask = key.asks.Behind(ask)) {
    if (ask->step != step) continue;
    if (ask->front != nullptr || !ask->behind.empty() || !ask->leaves()) return ask;
  }
  return nullptr;
}

}  // namespace tryst
