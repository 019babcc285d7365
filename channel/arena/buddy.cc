#include "channel/arena/buddy.h"

#include <algorithm>

#include "base/log.h"

namespace tryst {

int Buddy::OrderOf(uint64_t bytes) {
  int order = 0;
  while ((kGranule << order) < bytes) ++order;
  return order;
}

uint64_t Buddy::Rounded(uint64_t bytes) {
  const uint64_t block = kGranule << OrderOf(bytes);
  const uint64_t step = std::max(kGranule, block / 8);
  return std::max(kGranule, (bytes + step - 1) / step * step);
}

Buddy::Buddy(uint64_t bytes)
    : orders_(OrderOf(bytes) + 1),
      leaves_(bytes / kGranule),
      heads_(static_cast<size_t>(orders_), kNil) {
  TRYST_CHECK(bytes == kGranule << (orders_ - 1));
  Push(0, orders_ - 1);
}

void Buddy::Push(uint32_t leaf, int order) {
  uint32_t& head = heads_[static_cast<size_t>(order)];
  leaves_[leaf].free_order = static_cast<int8_t>(order);
  leaves_[leaf].next = head;
  leaves_[leaf].previous = kNil;
  if (head != kNil) leaves_[head].previous = leaf;
  head = leaf;
}

void Buddy::Remove(uint32_t leaf, int order) {
  Leaf& at = leaves_[leaf];
  if (at.previous != kNil) {
    leaves_[at.previous].next = at.next;
  } else {
    heads_[static_cast<size_t>(order)] = at.next;
  }
  if (at.next != kNil) leaves_[at.next].previous = at.previous;
  at.free_order = -1;
}

uint64_t Buddy::Take(uint64_t bytes) {
  const int wanted = OrderOf(bytes);
  int order = wanted;
  while (order < orders_ && heads_[static_cast<size_t>(order)] == kNil) ++order;
  if (order >= orders_) return kNone;
  const uint32_t leaf = heads_[static_cast<size_t>(order)];
  Remove(leaf, order);
  for (; order > wanted; --order) Push(leaf + (1u << (order - 1)), order - 1);
  const uint64_t rounded = Rounded(bytes);
  const uint64_t offset = leaf * kGranule;
  used_ += kGranule << wanted;
  if (rounded < kGranule << wanted) GiveRange(offset + rounded, (kGranule << wanted) - rounded);
  return offset;
}

void Buddy::Give(uint64_t offset, uint64_t bytes) { GiveRange(offset, Rounded(bytes)); }

void Buddy::GiveRange(uint64_t offset, uint64_t bytes) {
  uint64_t leaf = offset / kGranule;
  uint64_t count = bytes / kGranule;
  while (count > 0) {
    // The largest block that begins here and does not reach beyond the end.
    int order = 0;
    while (order + 1 < orders_ && (leaf & ((uint64_t{2} << order) - 1)) == 0 &&
           (uint64_t{2} << order) <= count) {
      ++order;
    }
    GiveBlock(static_cast<uint32_t>(leaf), order);
    leaf += uint64_t{1} << order;
    count -= uint64_t{1} << order;
  }
}

void Buddy::GiveBlock(uint32_t leaf, int order) {
  TRYST_CHECK(used_ >= kGranule << order) << "given back more than was taken";
  used_ -= kGranule << order;
  while (order + 1 < orders_) {
    const uint32_t other = leaf ^ (1u << order);
    if (leaves_[other].free_order != order) break;
    Remove(other, order);
    leaf &= ~(1u << order);
    ++order;
  }
  Push(leaf, order);
}

}  // namespace tryst
