#ifndef TRYST_CHANNEL_COMPAT_SERIAL_SET_H_
#define TRYST_CHANNEL_COMPAT_SERIAL_SET_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace tryst {

// Serials that have ended: all below a mark, and runs above it. Serials end nearly in order, so
// there are few runs.
class SerialSet {
 public:
  bool Contains(uint64_t serial) const {
    if (serial < below_) return true;
    auto run = runs_.upper_bound(serial);
    return run != runs_.begin() && serial < std::prev(run)->second;
  }

  void Insert(uint64_t serial) {
    if (serial == below_) return InsertBelow(serial + 1);  // The usual case, without an allocation.
    if (Contains(serial)) return;
    auto next = runs_.upper_bound(serial);
    uint64_t end = serial + 1;
    if (next != runs_.end() && next->first == end) {
      end = next->second;
      next = runs_.erase(next);
    }
    if (next != runs_.begin() && std::prev(next)->second == serial) {
      std::prev(next)->second = end;
    } else {
      runs_.emplace(serial, end);
    }
  }

  // Everything below `mark` has ended. The mark never decreases.
  void InsertBelow(uint64_t mark) {
    if (mark <= below_) return;
    below_ = mark;
    while (!runs_.empty() && runs_.begin()->first <= below_) {
      if (runs_.begin()->second > below_) below_ = runs_.begin()->second;
      runs_.erase(runs_.begin());
    }
  }

  // The oldest serial that has not ended.
  uint64_t below() const { return below_; }
  size_t runs() const { return runs_.size(); }

 private:
  uint64_t below_ = 1;
  std::map<uint64_t, uint64_t> runs_;  // First -> one past the last.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_COMPAT_SERIAL_SET_H_
