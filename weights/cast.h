#ifndef TRYST_WEIGHTS_CAST_H_
#define TRYST_WEIGHTS_CAST_H_

#include <cstdint>

#include "rendezvous/dtype.h"

// Casts on publishing: a version has one type, whatever the owner keeps. float or half to bfloat16,
// and double to float. What needs a scale (8-bit floats) is the model's own to do.
namespace tryst {

bool CanCast(DType from, DType to);

// Rounds each element to the nearest, of two as near to the even one; keeps subnormals, whatever
// the thread's floating-point mode is; what is too large becomes infinity. A NaN keeps its sign and
// the upper bits of its payload, and is quiet, as the processors' own instructions have it.
// (torch.Tensor.to() gives the same but for NaNs: there it depends on the device and on the place
// in the tensor which NaN comes out.) REQUIRES: CanCast(); the memories do not overlap.
void Cast(DType from, const void* source, DType to, void* target, uint64_t elements);

// Without the processor's vector instructions; for tests.
void CastPortable(DType from, const void* source, DType to, void* target, uint64_t elements);

}  // namespace tryst

#endif  // TRYST_WEIGHTS_CAST_H_
