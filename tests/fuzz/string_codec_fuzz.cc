// String tensors from a peer: each is refused, or has exactly the elements of its shape and encodes
// to the same bytes.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "channel/string_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t rank = data[0] % 4;
  if (size < 1 + rank) return 0;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < rank; ++i) dims.push_back(data[1 + i]);
  const auto shape = tryst::TensorShape::Make(dims);
  if (!shape.ok()) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1 + rank, size - 1 - rank);
  const auto tensor = tryst::DecodeStrings(bytes, *shape);
  if (!tensor.ok()) return 0;
  if (tensor->shape() != *shape || tryst::EncodeStrings(*tensor) != bytes) abort();
  return 0;
}
