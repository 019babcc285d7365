#include "tests/weights/known_weights.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weights/cast.h"

namespace tryst {
namespace {

TensorLayout Named(const std::string& name, DType dtype, const TensorShape& shape) {
  TensorLayout layout;
  layout.name = name;
  layout.dtype = dtype;
  layout.shape = shape;
  return layout;
}

void Place(uint32_t owners, int dim, TensorLayout* layout) {
  layout->owners.resize(owners);
  std::iota(layout->owners.begin(), layout->owners.end(), 0);
  layout->mesh = {owners};
  layout->placements = {{dim}};
}

uint64_t Mixed(const std::string& name, uint64_t number, int64_t element) {
  uint64_t x = number * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(element);
  for (const char c : name) x = (x ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

// Writes one element. A float is between 1 and 2.
void WriteElement(const TensorLayout& layout, DType dtype, uint64_t number, int64_t element,
                  void* to) {
  const uint64_t mixed = Mixed(layout.name, number, element);
  if (dtype == DType::kFloat) {
    const uint32_t bits = 0x3f800000 | static_cast<uint32_t>(mixed & 0x7fffff);
    memcpy(to, &bits, sizeof(bits));
  } else {
    memcpy(to, &mixed, DTypeBytes(dtype));
  }
}

template <typename F>
void ForEach(const TensorLayout& layout, const Box& box, F&& element) {
  if (box.empty()) return;
  Extents at = box.begin;
  for (;;) {
    int64_t number = 0;
    for (int dim = 0; dim < box.rank(); ++dim) number = number * layout.shape.dim(dim) + at[dim];
    element(at, number);
    int dim = box.rank() - 1;
    while (dim >= 0 && ++at[dim] == box.begin[dim] + box.extent[dim]) {
      at[dim] = box.begin[dim];
      --dim;
    }
    if (dim < 0) return;
  }
}

Tensor Fill(const TensorLayout& layout, DType dtype, uint64_t number, const Box& box) {
  Tensor tensor = *Tensor::Allocate(dtype, *TensorShape::Make(box.extent));
  char* to = static_cast<char*>(tensor.mutable_data());
  ForEach(layout, box, [&](const Extents&, int64_t element) {
    WriteElement(layout, dtype, number, element, to);
    to += DTypeBytes(dtype);
  });
  return tensor;
}

}  // namespace

std::vector<TensorLayout> KnownLayouts(uint32_t owners) {
  std::vector<TensorLayout> layouts = {
      Named("rows", DType::kFloat, {257, 640}), Named("columns", DType::kUint16, {33, 70}),
      Named("few", DType::kInt64, {1, 5}),      Named("cast", DType::kBfloat16, {128, 64}),
      Named("boxes", DType::kUint8, {10, 10}),  Named("everywhere", DType::kInt32, {1000}),
      Named("scalar", DType::kDouble, {})};
  Place(owners, 0, &layouts[0]);
  Place(owners, 1, &layouts[1]);
  Place(owners, 0, &layouts[2]);  // All but the first have an empty shard.
  Place(owners, 1, &layouts[3]);
  layouts[4].boxes = {
      {0, {{0, 0}, {4, 10}}}, {1, {{4, 0}, {6, 3}}}, {0, {{4, 3}, {6, 7}}}, {1, {{4, 3}, {6, 7}}}};
  return layouts;
}

Tensor KnownFloats(const TensorLayout& layout, uint64_t number, const Box& box) {
  return Fill(layout, DType::kFloat, number, box);
}

Tensor KnownBox(const TensorLayout& layout, uint64_t number, const Box& box) {
  if (layout.dtype != DType::kBfloat16) return Fill(layout, layout.dtype, number, box);
  const Tensor floats = KnownFloats(layout, number, box);
  Tensor tensor = *Tensor::Allocate(layout.dtype, floats.shape());
  CastPortable(DType::kFloat, floats.data(), layout.dtype, tensor.mutable_data(),
               floats.shape().elements());
  return tensor;
}

absl::Status CheckKnown(const TensorLayout& layout, uint64_t number, const Box& box,
                        const Tensor& memory, const Strides& places) {
  const Tensor known = KnownBox(layout, number, box);
  const uint32_t element_bytes = DTypeBytes(layout.dtype);
  std::vector<uint8_t> expected(memory.bytes(), kUntouched);
  const uint8_t* from = known.data_as<uint8_t>();
  ForEach(layout, box, [&](const Extents& at, int64_t) {
    int64_t place = places.offset;
    for (int dim = 0; dim < box.rank(); ++dim) {
      place += (at[dim] - box.begin[dim]) * places.steps[dim];
    }
    memcpy(&expected[place * element_bytes], from, element_bytes);
    from += element_bytes;
  });
  if (memory.bytes() == 0 || memcmp(expected.data(), memory.data(), memory.bytes()) == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("box ", box.ToString(), " of tensor ", layout.name,
                                          " is not what version ", number, " has"));
}

}  // namespace tryst
