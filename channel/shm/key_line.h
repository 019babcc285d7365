#ifndef TRYST_CHANNEL_SHM_KEY_LINE_H_
#define TRYST_CHANNEL_SHM_KEY_LINE_H_

#include <cstddef>
#include <cstdint>

#include "rendezvous/tensor_key.h"

namespace tryst {

// A line of T that each know their neighbours (T::next, T::prev): leaving it costs the same from
// any place. Owns nothing. Needs external synchronisation.
template <typename T>
class ShmLine {
 public:
  bool empty() const { return front_ == nullptr; }
  size_t size() const { return size_; }
  T* front() const { return front_; }
  T* back() const { return back_; }
  void push_back(T* one) {
    one->prev = back_;
    one->next = nullptr;
    (back_ == nullptr ? front_ : back_->next) = one;
    back_ = one;
    ++size_;
  }
  // REQUIRES: `one` is in this line.
  void Remove(T* one) {
    (one->prev == nullptr ? front_ : one->prev->next) = one->next;
    (one->next == nullptr ? back_ : one->next->prev) = one->prev;
    one->prev = one->next = nullptr;
    --size_;
  }

 private:
  T* front_ = nullptr;
  T* back_ = nullptr;
  size_t size_ = 0;
};

struct ShmServeOp;
struct ShmServeWant;
class ShmServeTake;
struct ShmKeyLine;

// What wants a tensor: a request on a slot, or a want that has none yet.
struct ShmWaiter {
  ShmServeOp* op = nullptr;
  ShmServeWant* want = nullptr;
  ShmKeyLine* line = nullptr;  // In which it waits; null: it does not.
  ShmWaiter* next = nullptr;
  ShmWaiter* prev = nullptr;
};

// What one consumer wants of one key and step and has not been given, and the takes that were
// started for it. The source gives to takes in their order, and what the takes bring goes, in
// that order, to those who wait the longest: whose take it was does not matter. So one who no
// longer wants a tensor leaves the line, and the newest take is dropped for it: what the others
// have met stays theirs, in its order. Poller thread only.
struct ShmKeyLine {
  TensorKey key;
  int64_t step = 0;
  ShmLine<ShmWaiter> waiting;
  ShmLine<ShmServeTake> takes;
  size_t live = 0;        // Of the takes: not dropped. As many as wait, between two calls.
  bool settling = false;  // A call that hands out what the takes have brought is on the stack.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_KEY_LINE_H_
