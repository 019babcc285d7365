#ifndef TRYST_CHANNEL_OPS_LINKED_LINE_H_
#define TRYST_CHANNEL_OPS_LINKED_LINE_H_

#include <cstddef>

namespace tryst {

template <typename T>
class LinkedLine;

// A place in a LinkedLine.
template <typename T>
struct LineLink {
  T* previous = nullptr;
  T* next = nullptr;
  LinkedLine<T>* line = nullptr;  // The line that holds the item; null: none.
};

// A first-in-first-out line that can drop an item from its middle in constant time. The items hold
// the links; the line allocates and owns nothing. Needs external synchronisation.
template <typename T>
class LinkedLine {
 public:
  // `link` is the member of the items that this line uses. Lines that never hold the same item at
  // the same time may share a member.
  explicit LinkedLine(LineLink<T> T::*link) : link_(link) {}
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  T* front() const { return first_; }
  T* back() const { return last_; }
  T* Behind(const T* one) const { return (one->*link_).next; }  // Null: `one` is the last.
  bool Holds(const T* one) const { return (one->*link_).line == this; }
  void Push(T* one) {  // REQUIRES: it is in no line through this link.
    one->*link_ = {last_, nullptr, this};
    (last_ != nullptr ? (last_->*link_).next : first_) = one;
    last_ = one;
    ++size_;
  }
  void PushFront(T* one) {  // REQUIRES: as Push().
    one->*link_ = {nullptr, first_, this};
    (first_ != nullptr ? (first_->*link_).previous : last_) = one;
    first_ = one;
    ++size_;
  }
  T* PopFront() {
    T* const one = first_;
    Remove(one);
    return one;
  }
  void Replace(T* one, T* by) {  // REQUIRES: it is in the line, and `by` is in none.
    LineLink<T>& link = one->*link_;
    (link.previous != nullptr ? (link.previous->*link_).next : first_) = by;
    (link.next != nullptr ? (link.next->*link_).previous : last_) = by;
    by->*link_ = link;
    link = LineLink<T>();
  }
  void Remove(T* one) {  // Does nothing if it is not in the line.
    LineLink<T>& link = one->*link_;
    if (link.line != this) return;
    (link.previous != nullptr ? (link.previous->*link_).next : first_) = link.next;
    (link.next != nullptr ? (link.next->*link_).previous : last_) = link.previous;
    link = LineLink<T>();
    --size_;
  }

 private:
  LineLink<T> T::*const link_;
  T* first_ = nullptr;
  T* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_LINKED_LINE_H_
