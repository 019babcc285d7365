#include "server/regions/grant_table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"

namespace tryst {

GrantTable::Found GrantTable::Find(const TensorKey& region, bool at_first) {
  if (!uses_) return {};
  Memories gone;
  MutexLock lock(&mu_);
  if (closed_) return {};
  const auto found = regions_.find(region);
  if (found != regions_.end()) {
    Known* const known = &found->second;
    known->used = true;
    // A fetch of little does not map it again.
    const bool asks = (known->memory == nullptr || !at_first) && !known->asked;
    if (asks) known->asked = true;
    return {known->memory, asks};
  }
  const auto owner = owners_.find(region.src().worker);
  if (owner != owners_.end() && owner->second.incarnation == region.src_incarnation() &&
      owner->second.gives_none) {
    return {};
  }
  Add(region, {nullptr, at_first}, &gone);
  return {nullptr, at_first};
}

void GrantTable::Add(const TensorKey& region, Known known, Memories* gone) {
  if (regions_.size() >= kMost) {
    // Regions of one fetch each leave nothing but their names, and go before those with memory.
    auto goes = std::find_if(regions_.begin(), regions_.end(),
                             [](const auto& each) { return each.second.memory == nullptr; });
    if (goes == regions_.end()) goes = regions_.begin();
    gone->push_back(std::move(goes->second.memory));
    regions_.erase(goes);
  }
  regions_[region] = std::move(known);
}

void GrantTable::Set(const TensorKey& region,
                     absl::StatusOr<std::shared_ptr<const GrantedMemory>> granted) {
  Memories gone;
  MutexLock lock(&mu_);
  SetLocked(region, granted.status(), granted.ok() ? *std::move(granted) : nullptr, &gone);
}

GrantTable::Memories GrantTable::Sweep() {
  Memories gone;
  MutexLock lock(&mu_);
  for (auto each = regions_.begin(); each != regions_.end();) {
    const auto at = each++;
    Known* const known = &at->second;
    if (std::exchange(known->used, false)) continue;
    if (known->memory == nullptr) {
      regions_.erase(at);
    } else if (known->memory->mapped()) {
      auto unmapped = known->memory->Unmapped();
      gone.push_back(std::exchange(known->memory, std::move(unmapped)));
      known->asked = false;
    }
  }
  return gone;
}

void GrantTable::Close() {
  absl::flat_hash_map<TensorKey, Known> gone;
  MutexLock lock(&mu_);
  closed_ = true;
  regions_.swap(gone);
}

void GrantTable::Failed(const TensorKey& region, const GrantedMemory* memory,
                        const absl::Status& why) {
  Memories gone;
  MutexLock lock(&mu_);
  const auto found = regions_.find(region);
  // There may be a newer one.
  if (found == regions_.end() || found->second.memory.get() != memory) return;
  SetLocked(region, why, nullptr, &gone);
}

void GrantTable::SetLocked(const TensorKey& region, const absl::Status& status,
                           std::shared_ptr<const GrantedMemory> memory, Memories* gone) {
  const auto found = regions_.find(region);
  if (found != regions_.end()) {
    gone->push_back(std::move(found->second.memory));
    regions_.erase(found);
  }
  if (closed_) return gone->push_back(std::move(memory));
  const bool of_region =
      status.ok() || absl::IsDataLoss(status) || absl::IsResourceExhausted(status);
  // An older release answers kInvalidArgument.
  const bool of_owner = absl::IsUnimplemented(status) || absl::IsInvalidArgument(status);
  if (!of_region && !of_owner) return;  // It is closed, or was cancelled: who comes later asks.
  if (of_region) {
    Add(region, {std::move(memory), true}, gone);
  }
  if (owners_.size() >= kMost) owners_.erase(owners_.begin());
  owners_[std::string(region.src().worker)] = {region.src_incarnation(), of_owner,
                                               std::string(status.message())};
}

std::string GrantTable::Explain(absl::string_view peer) const {
  std::string text;
  MutexLock lock(&mu_);
  for (const auto& [worker, owner] : owners_) {
    if (!peer.empty() && peer != worker) continue;
    absl::StrAppend(&text, "regions of ", worker, " are copied by ",
                    owner.gives_none ? "it" : "this worker itself");
    if (!owner.why.empty()) {
      absl::StrAppend(&text, owner.gives_none ? ": " : ", but for some: ", Printable(owner.why));
    }
    text.push_back('\n');
  }
  return text;
}

GrantTable::Room::Room(GrantTable* table) : table_(table) {
  if (table_->room_taken_.exchange(true, std::memory_order_acquire)) return;
  if (table_->room_ == nullptr) table_->room_.reset(new (std::nothrow) uint8_t[kBytes]);
  data_ = table_->room_.get();
  if (data_ == nullptr) table_->room_taken_.store(false, std::memory_order_release);
}

GrantTable::Room::~Room() {
  if (data_ != nullptr) table_->room_taken_.store(false, std::memory_order_release);
}

}  // namespace tryst
