#include "tests/doubles/sim_nic/memory_guard.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

MemoryGuard::Levels::Map::iterator MemoryGuard::Levels::Split(Address at) {
  auto next = from_.upper_bound(at);
  const uint32_t level = next == from_.begin() ? 0 : std::prev(next)->second;
  return from_.insert({at, level}).first;
}

MemoryGuard::Levels::Map::const_iterator MemoryGuard::Levels::At(Address at) const {
  const auto next = from_.upper_bound(at);
  return next == from_.begin() ? from_.end() : std::prev(next);
}

void MemoryGuard::Levels::Add(const void* address, uint64_t bytes) {
  if (bytes == 0) return;
  const auto begin = reinterpret_cast<Address>(address);
  const auto end = Split(begin + bytes);
  for (auto it = Split(begin); it != end; ++it) ++it->second;
}

bool MemoryGuard::Levels::Remove(const void* address, uint64_t bytes) {
  if (bytes == 0) return true;
  if (!All(address, bytes)) return false;
  const auto begin = reinterpret_cast<Address>(address);
  const auto end = Split(begin + bytes);
  for (auto it = Split(begin); it != end; ++it) --it->second;
  // Removes boundaries between ranges that no longer differ.
  auto it = from_.find(begin);
  const auto stop = std::next(end);
  while (it != stop) {
    const uint32_t before = it == from_.begin() ? 0 : std::prev(it)->second;
    it = it->second == before ? from_.erase(it) : std::next(it);
  }
  return true;
}

bool MemoryGuard::Levels::Any(const void* address, uint64_t bytes) const {
  const auto begin = reinterpret_cast<Address>(address);
  auto it = At(begin);
  if (it == from_.end()) it = from_.begin();
  for (; it != from_.end() && it->first < begin + bytes; ++it) {
    if (it->second != 0) return true;
  }
  return false;
}

bool MemoryGuard::Levels::All(const void* address, uint64_t bytes) const {
  const auto begin = reinterpret_cast<Address>(address);
  auto it = At(begin);
  if (it == from_.end()) return false;
  for (; it != from_.end() && it->first < begin + bytes; ++it) {
    if (it->second == 0) return false;
  }
  return true;
}

void MemoryGuard::Poison(const void* address, uint64_t bytes) { poisoned_.Add(address, bytes); }

void MemoryGuard::Unpoison(const void* address, uint64_t bytes) {
  TRYST_CHECK(poisoned_.Remove(address, bytes)) << "was not poisoned";
}

void MemoryGuard::Registered(const void* address, uint64_t bytes, bool writable) {
  readable_.Add(address, bytes);
  if (writable) writable_.Add(address, bytes);
}

void MemoryGuard::Deregistered(const void* address, uint64_t bytes, bool writable) {
  TRYST_CHECK(readable_.Remove(address, bytes));
  if (writable) TRYST_CHECK(writable_.Remove(address, bytes));
}

bool MemoryGuard::MayRead(const void* address, uint64_t bytes, uint32_t who) {
  const char* wrong = nullptr;
  if (!readable_.All(address, bytes)) wrong = " B outside a region";
  if (poisoned_.Any(address, bytes)) wrong = " B of poisoned memory";
  if (wrong == nullptr) return true;
  Violation(absl::StrCat("queue pair ", who, " read ", bytes, wrong));
  return false;
}

bool MemoryGuard::MayWrite(const void* address, uint64_t bytes, uint32_t who) {
  const char* wrong = nullptr;
  if (!writable_.All(address, bytes)) wrong = " B outside a region";
  if (poisoned_.Any(address, bytes)) wrong = " B of poisoned memory";
  if (wrong == nullptr) return true;
  Violation(absl::StrCat("queue pair ", who, " wrote ", bytes, wrong));
  return false;
}

void MemoryGuard::Violation(std::string text) {
  ++violation_count_;
  if (violations_.size() < kMaxTexts) violations_.push_back(std::move(text));
}

}  // namespace tryst
