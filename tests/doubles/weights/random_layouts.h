#ifndef TRYST_TESTS_DOUBLES_WEIGHTS_RANDOM_LAYOUTS_H_
#define TRYST_TESTS_DOUBLES_WEIGHTS_RANDOM_LAYOUTS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "weights/layout.h"

// Small random layouts for property tests: each has few enough elements to count them all.
namespace tryst {

using Random = std::mt19937_64;
inline int64_t Below(Random* random, int64_t bound) { return (*random)() % bound; }

TensorShape RandomShape(Random* random, int max_rank, int64_t max_dim);
// A box within the shape; it may be empty.
Box RandomBox(Random* random, const TensorShape& shape);
// A mesh with placements, or none. Empty shards are frequent.
TensorLayout RandomPlacedLayout(Random* random, uint32_t owners);
// Explicit boxes that cover the shape, some of them with replicas, some empty.
TensorLayout RandomBoxedLayout(Random* random, uint32_t owners);

// The elements of a box, as coordinates in row-major order.
std::vector<Extents> ElementsOf(const Box& box);
// The row-major number of an element.
int64_t NumberOf(const Extents& element, const TensorShape& shape);

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_WEIGHTS_RANDOM_LAYOUTS_H_
