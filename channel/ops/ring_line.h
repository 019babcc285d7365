#ifndef TRYST_CHANNEL_OPS_RING_LINE_H_
#define TRYST_CHANNEL_OPS_RING_LINE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace tryst {

// A queue in a ring that grows and never shrinks. In the steady state it allocates nothing; a
// std::deque allocates every few elements. Needs external synchronisation.
template <typename T>
class RingLine {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // The i-th from the front. REQUIRES: i < size(); for the others, !empty().
  T& operator[](size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  const T& operator[](size_t i) const { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  T& front() { return ring_[first_]; }
  T& back() { return (*this)[size_ - 1]; }
  const T& front() const { return ring_[first_]; }
  void push_back(T value) {
    if (size_ == ring_.size()) Grow();
    (*this)[size_++] = std::move(value);
  }
  void pop_front() {
    ring_[first_] = T();
    first_ = (first_ + 1) & (ring_.size() - 1);
    --size_;
  }
  // Removes the first element that equals `value`, if there is one; the others keep their order.
  // Cheap for an element near the front.
  void Remove(const T& value) {
    size_t i = 0;
    while (i < size_ && !((*this)[i] == value)) ++i;
    if (i == size_) return;
    for (; i > 0; --i) (*this)[i] = std::move((*this)[i - 1]);
    pop_front();
  }
  void clear() {
    while (!empty()) pop_front();
  }

 private:
  void Grow() {
    std::vector<T> larger(ring_.empty() ? 8 : 2 * ring_.size());
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    ring_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> ring_;  // Its size is a power of two, or 0.
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_RING_LINE_H_
