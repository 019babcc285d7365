// A DLPack structure with any content: it is refused, or adopted with exactly the bytes that it
// names.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "rendezvous/dlpack.h"

namespace {

using tryst::Tensor;
using tryst::dlpack::DLManagedTensorVersioned;

void Check(bool holds) {
  if (!holds) abort();
}

// Reads the input; returns zeros when it is used up.
struct Input {
  const uint8_t* data;
  size_t size;
  template <typename T>
  T Next() {
    T value = {};
    const size_t n = std::min(size, sizeof(T));
    if (n != 0) memcpy(&value, data, n);
    data += n;
    size -= n;
    return value;
  }
};

constexpr uint64_t kGiven = 4096;
int deleted = 0;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static char memory[kGiven];
  Input input{data, size};
  int64_t shape[16];
  int64_t strides[16];
  DLManagedTensorVersioned managed = {};
  managed.deleter = [](DLManagedTensorVersioned*) { ++deleted; };
  const uint8_t choices = input.Next<uint8_t>();
  managed.version.major = choices & 1 ? 1 : input.Next<uint32_t>();
  managed.flags = input.Next<uint8_t>();
  auto& tensor = managed.dl_tensor;
  tensor.data = choices & 2 ? nullptr : memory;
  tensor.device.device_type = choices & 4 ? input.Next<int32_t>() : 1;
  tensor.device.device_id = choices & 8 ? input.Next<int32_t>() : 0;
  tensor.dtype.code = input.Next<uint8_t>() % 16;
  tensor.dtype.bits = input.Next<uint8_t>();
  tensor.dtype.lanes = choices & 16 ? input.Next<uint16_t>() : 1;
  tensor.ndim = choices & 32 ? input.Next<int32_t>() : input.Next<uint8_t>() % 5;
  tensor.byte_offset = choices & 64 ? input.Next<uint64_t>() : input.Next<uint8_t>();
  for (int64_t& dim : shape)
    dim = choices & 128 ? input.Next<int64_t>() : input.Next<uint8_t>() % 9;
  const bool strided = input.Next<uint8_t>() & 1;
  for (int64_t& stride : strides) stride = input.Next<int8_t>();
  tensor.shape = shape;
  tensor.strides = strided ? strides : nullptr;

  deleted = 0;
  {
    absl::StatusOr<Tensor> imported = tryst::FromDLPack(&managed);
    if (!imported.ok()) {
      Check(deleted == 0);
      return 0;
    }
    Check(deleted == 0);
    Check(imported->shape().rank() == tensor.ndim);
    uint64_t elements = 1;
    for (int i = 0; i < tensor.ndim; ++i) elements *= static_cast<uint64_t>(shape[i]);
    Check(static_cast<uint64_t>(imported->shape().elements()) == elements);
    Check(imported->bytes() == elements * tryst::DTypeBytes(imported->dtype()));
    // Compared as numbers: the offset may point outside `memory`, and nothing is read.
    Check(reinterpret_cast<uintptr_t>(imported->data()) ==
          reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset);
    // Exports it and imports it again.
    absl::StatusOr<DLManagedTensorVersioned*> exported = tryst::ToDLPack(*imported);
    Check(exported.ok());
    absl::StatusOr<Tensor> back = tryst::FromDLPack(*exported);
    Check(back.ok());
    Check(back->shape() == imported->shape() && back->dtype() == imported->dtype());
  }
  Check(deleted == 1);
  return 0;
}
