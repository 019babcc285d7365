#include "channel/ops/fetch_keys.h"

#include <utility>

#include "base/release_memory.h"

namespace tryst {

FetchKey* FetchKeys::Intern(const TensorKey& key) {
  const uint32_t noted = key.note();
  if (noted < by_id_.size() && by_id_[noted]->key.SharesTextWith(key)) {
    return by_id_[noted];
  }
  FetchKey* entry = Find(key);
  if (entry == nullptr) {
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    entry = free_.back();
    free_.pop_back();
    keys_.emplace(key, entry);
  }
  // The owner's present copy of the key, which it may use again.
  entry->key = key;
  Number(entry);
  key.set_note(entry->id);
  return entry;
}

FetchKey* FetchKeys::Find(const TensorKey& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : found->second;
}

void FetchKeys::GiveId(FetchKey* entry) {
  const uint64_t bytes = entry->key.text().size();
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
  if (!entry->asks.empty()) return;
  keys_.erase(entry->key);
  entry->key = TensorKey();
  free_.push_back(entry);
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
  next_id_ = 0;
  lap_bytes_ = 0;
}

FetchAsk* FetchKeys::SearchAsk(const FetchKey& key, int64_t step) {
  for (FetchAsk* ask = key.asks.front(); ask != nullptr; ask = key.asks.Behind(ask)) {
    if (ask->step != step) continue;
    if (ask->front != nullptr || !ask->behind.empty() || !ask->leaves()) return ask;
  }
  return nullptr;
}

void FetchKeys::Join(FetchAsk* ask, FetchKey* key, int64_t step) {
  ask->of = key;
  ask->step = step;
  if (key->asks.empty() || step > key->last_step) key->last_step = step;
  key->asks.Push(ask);
}

void FetchKeys::Leave(FetchAsk* ask) {
  FetchKey* const key = std::exchange(ask->of, nullptr);
  key->asks.Remove(ask);
  if (key->id != FetchKey::kNoId || !key->asks.empty()) return;
  keys_.erase(key->key);
  key->key = TensorKey();
  free_.push_back(key);
}

}  // namespace tryst
