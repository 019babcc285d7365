#include "plugins/tensorflow/tensors.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tryst_tensorflow {
namespace {

using tensorflow::Tensor;

// The alignment that TensorFlow's kernels expect.
constexpr uintptr_t kAlignment = 64;
constexpr int kMaxRank = 8;  // The limit between workers of Tryst.

// How much of Tryst's landing memory TensorFlow may hold at once: a variable that is assigned a
// received tensor holds it for good.
constexpr size_t kMaxHeld = 256 << 20;
std::atomic<size_t> held{0};

void ReleaseTensor(void* tensor) { delete static_cast<Tensor*>(tensor); }

// Memory of Tryst's that a tensor of TensorFlow refers to. Kernels do not reuse it for their
// outputs, because it returns to Tryst's landing memory.
class Landed final : public tensorflow::TensorBuffer {
 public:
  Landed(const Library& library, tryst_tensor* received)
      : TensorBuffer(library.tryst_tensor_data(received)),
        library_(library),
        received_(received),
        bytes_(library.tryst_tensor_bytes(received)) {
    held += bytes_;
  }
  ~Landed() override {
    held -= bytes_;
    library_.tryst_tensor_free(received_);
  }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("tryst");
  }

 private:
  const Library& library_;
  tryst_tensor* const received_;
  const size_t bytes_;
};

bool LooksLikeAnswer(int dtype, size_t rank, const int64_t* dims) {
  if (dtype != TRYST_UINT8 || rank != kAnswerRank) return false;
  for (size_t i = 0; i + 1 < rank; ++i) {
    if (dims[i] != 1) return false;
  }
  return true;
}

std::vector<int64_t> DimsOf(const Library& library, const tryst_tensor* tensor) {
  std::vector<int64_t> dims(library.tryst_tensor_rank(tensor));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = library.tryst_tensor_dim(tensor, i);
  return dims;
}

}  // namespace

bool CanTravel(const Tensor& tensor) {
  if (!tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) || tensor.dims() > kMaxRank) return false;
  const auto dims = tensor.shape().dim_sizes();
  return !LooksLikeAnswer(tensor.dtype(), dims.size(), dims.data());
}

tryst_tensor* Lend(const Library& library, const Tensor& tensor) {
  const auto dims = tensor.shape().dim_sizes();
  const std::string_view bytes(tensor.tensor_data().data(), tensor.tensor_data().size());
  static char nothing[kAlignment];
  void* data = bytes.empty() ? nothing : const_cast<char*>(bytes.data());
  tryst_tensor* lent = nullptr;
  library.tryst_status_free(
      library.tryst_tensor_adopt(data, static_cast<tryst_dtype>(tensor.dtype()), dims.data(),
                                 dims.size(), ReleaseTensor, new Tensor(tensor), &lent));
  return lent;
}

bool Wrap(const Library& library, tryst_tensor* received, tensorflow::Allocator* allocator,
          Tensor* tensor, bool* copied) {
  *copied = false;
  const auto dtype = static_cast<tensorflow::DataType>(library.tryst_tensor_dtype(received));
  const std::vector<int64_t> dims = DimsOf(library, received);
  tensorflow::TensorShape shape;
  const bool is_one = tensorflow::DataTypeCanUseMemcpy(dtype) &&
                      tensorflow::TensorShape::BuildTensorShape(dims, &shape).ok();
  const void* data = library.tryst_tensor_data(received);
  const size_t bytes = library.tryst_tensor_bytes(received);
  if (!is_one || bytes == 0) {
    if (is_one) *tensor = Tensor(allocator, dtype, shape);
    library.tryst_tensor_free(received);
    return is_one;
  }
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
  if (is_aligned && held + bytes <= kMaxHeld) {
    auto* landed = new Landed(library, received);
    *tensor = Tensor(dtype, shape, landed);
    landed->Unref();  // The tensor has a reference of its own.
    return true;
  }
  *copied = true;
  *tensor = Tensor(allocator, dtype, shape);
  std::memcpy(const_cast<char*>(tensor->tensor_data().data()), data, bytes);
  library.tryst_tensor_free(received);
  return true;
}

bool IsAnswer(const Library& library, tryst_tensor* received, Answer* answer) {
  const std::vector<int64_t> dims = DimsOf(library, received);
  if (!LooksLikeAnswer(library.tryst_tensor_dtype(received), dims.size(), dims.data())) {
    return false;
  }
  const std::string_view bytes(static_cast<const char*>(library.tryst_tensor_data(received)),
                               library.tryst_tensor_bytes(received));
  return ReadAnswer(bytes, answer);
}

}  // namespace tryst_tensorflow
