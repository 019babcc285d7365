#ifndef TRYST_CHANNEL_RDMA_RING_LINE_H_
#define TRYST_CHANNEL_RDMA_RING_LINE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace tryst {

// First in, first out, in a ring that grows and never shrinks: in steady state nothing is
// allocated, as a std::deque does every few elements.
template <typename T>
class RingLine {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }  // From the front.
  T& front() { return ring_[first_]; }
  void push_back(T value) {
    if (size_ == ring_.size()) Grow();
    (*this)[size_++] = std::move(value);
  }
  void pop_front() {
    ring_[first_] = T();
    first_ = (first_ + 1) & (ring_.size() - 1);
    --size_;
  }
  // Linear. No-op when it is not there.
  void Remove(const T& value) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if ((*this)[i] == value) continue;
      if (kept != i) (*this)[kept] = std::move((*this)[i]);
      ++kept;
    }
    for (size_t i = kept; i < size_; ++i) (*this)[i] = T();
    size_ = kept;
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

  std::vector<T> ring_;  // A power of two, or empty.
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_RING_LINE_H_
