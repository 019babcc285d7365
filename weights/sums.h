#ifndef TRYST_WEIGHTS_SUMS_H_
#define TRYST_WEIGHTS_SUMS_H_

#include <cstdint>

#include "weights/fetch_plan.h"
#include "weights/layout.h"

// The check that does not care for layouts: each element adds a number that depends on its place in
// the global tensor and on its bits. The sums of boxes that make up a tensor are together the sum
// of the tensor, however it was cut: a wrong offset, a torn or an old box, a lost row show.
namespace tryst {

struct CoverSum {
  uint64_t low = 0, high = 0;
  CoverSum& operator+=(const CoverSum& other) {  // Each half for itself, modulo 2^64.
    low += other.low;
    high += other.high;
    return *this;
  }
  friend bool operator==(const CoverSum& a, const CoverSum& b) {
    return a.low == b.low && a.high == b.high;
  }
  friend bool operator!=(const CoverSum& a, const CoverSum& b) { return !(a == b); }
};

// The sum of a box of tensor number `tensor` of its set. It takes one pass. REQUIRES: the box is
// within the shape; CheckView() has accepted `lies`; `element_bytes` is 1, 2, 4, 8 or 16.
//
// An element adds (A(i) * bits, B(i) * bits), and as much again for being there; A and B are 32
// pseudo-random bits each. Elements of 8 and 16 bytes count as several of 4.
CoverSum SumOf(uint32_t tensor, const TensorShape& shape, const Box& box, uint32_t element_bytes,
               const void* memory, const Strides& lies);

// Without the processor's vector instructions; for tests.
CoverSum SumOfPortable(uint32_t tensor, const TensorShape& shape, const Box& box,
                       uint32_t element_bytes, const void* memory, const Strides& lies);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_SUMS_H_
