#ifndef TRYST_TESTS_WEIGHTS_KNOWN_WEIGHTS_H_
#define TRYST_TESTS_WEIGHTS_KNOWN_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/tensor.h"
#include "weights/fetch_plan.h"
#include "weights/layout.h"

// A set whose every element is known by its version and its place, so that owners and members of
// different processes agree without a word.
namespace tryst {

// A layout of each kind for two owners or more: by a mesh, with empty shards, by boxes, and
// replicated.
std::vector<TensorLayout> KnownLayouts(uint32_t owners);

// The box of the tensor, dense, with what the version has in it.
Tensor KnownBox(const TensorLayout& layout, uint64_t number, const Box& box);
// For "cast", which is declared as bfloat16: the floats that it is cast from.
Tensor KnownFloats(const TensorLayout& layout, uint64_t number, const Box& box);

// Whether the box lies in `memory` as `places` says, and nothing else was written there, where
// `memory` was filled with kUntouched bytes before.
inline constexpr uint8_t kUntouched = 0xee;
absl::Status CheckKnown(const TensorLayout& layout, uint64_t number, const Box& box,
                        const Tensor& memory, const Strides& places);

}  // namespace tryst

#endif  // TRYST_TESTS_WEIGHTS_KNOWN_WEIGHTS_H_
