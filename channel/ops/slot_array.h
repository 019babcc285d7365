#ifndef TRYST_CHANNEL_OPS_SLOT_ARRAY_H_
#define TRYST_CHANNEL_OPS_SLOT_ARRAY_H_

#include <cstddef>
#include <memory>

namespace tryst {

// A producer's record for each slot of a consumer. The connection grants a number of slots, and the
// array is made once with that size. Each request looks one up, bounded by the size.
template <typename T>
class SlotArray {
 public:
  // REQUIRES: empty().
  void Make(size_t size) {
    slots_ = std::make_unique<T[]>(size);
    size_ = size;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t slot) { return slots_[slot]; }
  T* begin() { return slots_.get(); }
  T* end() { return slots_.get() + size_; }
  const T* begin() const { return slots_.get(); }
  const T* end() const { return slots_.get() + size_; }

 private:
  std::unique_ptr<T[]> slots_;
  size_t size_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SLOT_ARRAY_H_
