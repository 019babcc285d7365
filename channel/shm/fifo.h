#ifndef TRYST_CHANNEL_SHM_FIFO_H_
#define TRYST_CHANNEL_SHM_FIFO_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace tryst {

// A line of values. Allocates only while it is longer than ever before, unlike std::deque,
// which allocates and frees as it moves on. Needs external synchronisation.
template <typename T>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // REQUIRES: i < size(); !empty().
  T& operator[](size_t i) { return slots_[(first_ + i) & (slots_.size() - 1)]; }
  const T& operator[](size_t i) const { return slots_[(first_ + i) & (slots_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  const T& front() const { return slots_[first_]; }

  void push_back(T value) {
    if (size_ == slots_.size()) Grow();
    (*this)[size_++] = std::move(value);
  }
  void pop_front() {
    first_ = (first_ + 1) & (slots_.size() - 1);
    --size_;
  }
  // The first that equals `value`, from wherever it is; the others keep their order. Near the
  // front it costs little.
  void Remove(const T& value) {
    size_t i = 0;
    while (i < size_ && !((*this)[i] == value)) ++i;
    if (i == size_) return;
    for (; i > 0; --i) (*this)[i] = std::move((*this)[i - 1]);
    pop_front();
  }
  void clear() { size_ = 0; }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 16 : slots_.size() * 2);
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_.swap(larger);
    first_ = 0;
  }

  std::vector<T> slots_;  // A power of two of them, or none.
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FIFO_H_
