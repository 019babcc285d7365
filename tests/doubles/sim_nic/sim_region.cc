#include "tests/doubles/sim_nic/sim_region.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "tests/doubles/sim_nic/sim_nic.h"

namespace tryst {
namespace {

// A key's lower bits are its index, the upper ones its generation; the salt hides both.
constexpr uint32_t kIndexBits = 20;
constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;
constexpr uint32_t kGenerationMask = (1u << (32 - kIndexBits)) - 1;

constexpr uint32_t kWritable = kLocalWrite | kRemoteWrite;

}  // namespace

uint32_t KeyTable::Index(uint32_t plain) { return plain & kIndexMask; }
uint32_t KeyTable::Generation(uint32_t plain) { return plain >> kIndexBits; }

uint32_t KeyTable::Name(uint32_t index) const {
  const uint32_t generation = keys_[index].generation & kGenerationMask;
  return ((generation << kIndexBits) | index) ^ salt_;
}

const KeyTable::Key* KeyTable::Find(uint32_t key) const {
  const uint32_t plain = key ^ salt_;
  if (Index(plain) >= keys_.size()) return nullptr;
  const Key& found = keys_[Index(plain)];
  return (found.generation & kGenerationMask) == Generation(plain) ? &found : nullptr;
}

KeyTable::Key* KeyTable::Find(uint32_t key) {
  return const_cast<Key*>(static_cast<const KeyTable*>(this)->Find(key));
}

uint32_t KeyTable::TakeIndex() {
  // With few spare slots an old key's number would soon be given out again.
  constexpr size_t kSpare = 64;
  if (free_.size() < kSpare) {
    TRYST_CHECK(keys_.size() <= kIndexMask);
    keys_.emplace_back();
    return static_cast<uint32_t>(keys_.size() - 1);
  }
  const uint32_t index = free_.front();
  free_.pop_front();
  return index;
}

uint32_t KeyTable::AddRegion(void* memory, uint64_t bytes, uint32_t access) {
  const uint32_t index = TakeIndex();
  Key& key = keys_[index];
  const uint16_t generation = key.generation;
  key = Key();
  key.generation = generation;
  key.live = true;
  key.access = access;
  key.bytes = bytes;
  key.memory = static_cast<uint8_t*>(memory);
  guard_->Registered(memory, bytes, (access & kWritable) != 0);
  ++regions_;
  region_bytes_ += bytes;
  return Name(index);
}

void KeyTable::RemoveRegion(uint32_t name) {
  Key* const key = Find(name);
  if (key == nullptr || !key->live) return;  // The NIC was lost before.
  if (key->users != 0) {
    guard_->Violation(absl::StrCat("region of ", key->bytes, " B destroyed while ", key->users,
                                   " entries of outstanding works name it"));
  }
  guard_->Deregistered(key->memory, key->bytes, (key->access & kWritable) != 0);
  --regions_;
  region_bytes_ -= key->bytes;
  key->live = false;
  ++key->generation;
  free_.push_back(Index(name ^ salt_));
}

uint32_t KeyTable::RenewRegion(uint32_t name) {
  const Key* const key = Find(name);
  if (key == nullptr || !key->live) return name;
  const Key region = *key;
  RemoveRegion(name);
  return AddRegion(region.memory, region.bytes, region.access);
}

uint8_t* KeyTable::Resolve(uint32_t name, uint64_t address, uint64_t bytes, uint32_t access) const {
  const Key* const key = Find(name);
  if (key == nullptr || !key->live) return nullptr;
  uint32_t granted = key->access;
  if ((granted & kRemoteWrite) != 0) granted |= kLocalWrite;
  if ((granted & access) != access) return nullptr;
  const uint64_t base = reinterpret_cast<uint64_t>(key->memory);
  if (address < base || bytes > key->bytes || address - base > key->bytes - bytes) return nullptr;
  return key->memory + (address - base);
}

void KeyTable::AddUser(uint32_t name) {
  if (Key* const key = Find(name)) ++key->users;
}

void KeyTable::RemoveUser(uint32_t name) {
  Key* const key = Find(name);
  if (key != nullptr && key->users > 0) --key->users;
}

void KeyTable::Clear() {
  for (const Key& key : keys_) {
    if (!key.live) continue;
    guard_->Deregistered(key.memory, key.bytes, (key.access & kWritable) != 0);
  }
  keys_.clear();
  free_.clear();
  regions_ = 0;
  region_bytes_ = 0;
}

SimRegion::SimRegion(SimNic* nic, void* memory, uint64_t bytes, uint32_t access)
    : nic_(nic),
      memory_(memory),
      bytes_(bytes),
      key_(nic->keys().AddRegion(memory, bytes, access)) {}

SimRegion::~SimRegion() { nic_->OnRegionGone(key_, bytes_); }

bool SimRegion::RenewRemoteKey() {
  if (!nic_->limits().renews_keys) return false;
  key_ = nic_->keys().RenewRegion(key_);
  return true;
}

}  // namespace tryst
