#include "rendezvous/tensor.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 39;  // A larger size must be a mistake.

// Storage in host memory, with its header and its bytes in one block.
class HostStorage final : public Storage {
 public:
  // Null when there is no memory.
  static Storage* New(uint64_t bytes) {
    if (bytes > kMaxBytes) return nullptr;
    void* block = ::operator new(kHeaderBytes + bytes, kAlign, std::nothrow);
    if (block == nullptr) return nullptr;
    return new (block) HostStorage(static_cast<char*>(block) + kHeaderBytes, bytes);
  }

 private:
  static constexpr size_t kHeaderBytes = 64;
  static constexpr std::align_val_t kAlign{Tensor::kAlignment};

  HostStorage(void* data, uint64_t bytes) : Storage(data, bytes, MemorySpace()) {
    static_assert(sizeof(HostStorage) <= kHeaderBytes);
  }
  ~HostStorage() override = default;
  void OnUnused() override {
    this->~HostStorage();
    ::operator delete(static_cast<void*>(this), kAlign);
  }
};

class AdoptedStorage final : public Storage {
 public:
  AdoptedStorage(void* data, uint64_t bytes, const MemorySpace& space, Tensor::Deleter deleter)
      : Storage(data, bytes, space), deleter_(std::move(deleter)) {}

 private:
  ~AdoptedStorage() override {
    if (deleter_) std::move(deleter_)();
  }
  Tensor::Deleter deleter_;
};

// A vector of strings; data() is its array.
class StringStorage final : public Storage {
 public:
  explicit StringStorage(std::vector<std::string> elements)
      : Storage(elements.data(), elements.size() * sizeof(std::string), MemorySpace()),
        elements_(std::move(elements)) {}

 private:
  ~StringStorage() override = default;
  std::vector<std::string> elements_;  // The vector is moved, so its array stays at its address.
};

// Null when there is no memory.
Storage* NewStrings(uint64_t count) {
  if (count > kMaxBytes / sizeof(std::string)) return nullptr;
  try {
    return new StringStorage(std::vector<std::string>(count));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The unit of an offset: one byte, or one std::string for a string tensor.
uint64_t StrideBytes(DType dtype) {
  return dtype == DType::kString ? sizeof(std::string) : DTypeBytes(dtype);
}

}  // namespace

void Storage::AddNote(std::unique_ptr<StorageNote> added) {
  StorageNote* const note = added.release();
  note->next_ = notes_.load(std::memory_order_relaxed);
  while (!notes_.compare_exchange_weak(note->next_, note, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
}

void Storage::DropAllNotes() {
  StorageNote* note = notes_.exchange(nullptr, std::memory_order_acquire);
  while (note != nullptr) delete std::exchange(note, note->next_);
}

TensorShape::TensorShape(std::initializer_list<int64_t> dims) {
  const absl::Status status = Set(absl::MakeConstSpan(dims.begin(), dims.size()));
  TRYST_CHECK(status.ok()) << status;
}

absl::StatusOr<TensorShape> TensorShape::Make(absl::Span<const int64_t> dims) {
  absl::StatusOr<TensorShape> shape(absl::in_place);
  absl::Status status = shape->Set(dims);
  if (!status.ok()) return status;
  return shape;
}

// Sets the dimensions. REQUIRES: the shape is a scalar. On an error it stays a scalar.
absl::Status TensorShape::Set(absl::Span<const int64_t> dims) {
  if (dims.size() > kMaxLocalRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A tensor's shape has ", dims.size(), " dimensions, and may have at most ", kMaxLocalRank));
  }
  int64_t elements = 1;
  bool empty = false;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(absl::StrCat("A tensor's shape has a negative dimension: [",
                                                     absl::StrJoin(dims, ","), "]"));
    }
    empty |= dim == 0;
    if (dim != 0 && __builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("A tensor's shape has more elements than fit into 64 bits: [",
                       absl::StrJoin(dims, ","), "]"));
    }
  }
  int64_t* out = near_;
  if (dims.size() > kMaxRank) {
    far_ = new FarDims;
    far_->refs.store(1, std::memory_order_relaxed);
    out = far_->dims;
  }
  std::copy(dims.begin(), dims.end(), out);
  rank_ = static_cast<uint8_t>(dims.size());
  elements_ = empty ? 0 : elements;
  return absl::OkStatus();
}

void TensorShape::Unref() {
  if (far_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete far_;
}

std::string TensorShape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(dims(), ","), "]");
}

absl::StatusOr<uint64_t> TensorBytes(DType dtype, const TensorShape& shape) {
  const uint32_t element_bytes = DTypeBytes(dtype);
  if (element_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("The type ", DTypeName(dtype), " (",
                                                   static_cast<int>(dtype),
                                                   ") has no elements of a fixed size"));
  }
  int64_t bytes;  // Signed: no object is larger than PTRDIFF_MAX.
  if (__builtin_mul_overflow(shape.elements(), int64_t{element_bytes}, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A tensor has more bytes than memory can have: ", DTypeName(dtype), shape.ToString()));
  }
  return static_cast<uint64_t>(bytes);
}

absl::StatusOr<Tensor> Tensor::Allocate(DType dtype, const TensorShape& shape) {
  if (dtype == DType::kString) {
    Storage* const strings = NewStrings(shape.elements());
    if (strings == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for a string tensor of shape ", shape.ToString()));
    }
    return Tensor(StorageRef::Own(strings), 0, dtype, shape);
  }
  absl::StatusOr<uint64_t> bytes = TensorBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  Storage* storage = HostStorage::New(*bytes);
  if (storage == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory for a tensor of ", DTypeName(dtype), shape.ToString()));
  }
  return Tensor(StorageRef::Own(storage), 0, dtype, shape);
}

absl::StatusOr<Tensor> Tensor::Adopt(void* data, DType dtype, const TensorShape& shape,
                                     const MemorySpace& space, Deleter deleter) {
  absl::StatusOr<uint64_t> bytes = TensorBytes(dtype, shape);
  absl::Status status = bytes.status();
  if (bytes.ok() && data == nullptr && *bytes != 0) {
    status = absl::InvalidArgumentError(
        absl::StrCat("Tensor::Adopt got null for ", *bytes, " bytes of memory"));
  }
  if (!status.ok()) {
    if (deleter) std::move(deleter)();
    return status;
  }
  return Tensor(StorageRef::Own(new AdoptedStorage(data, *bytes, space, std::move(deleter))), 0,
                dtype, shape);
}

absl::StatusOr<Tensor> Tensor::FromStorage(StorageRef storage, uint64_t offset, DType dtype,
                                           const TensorShape& shape) {
  absl::StatusOr<uint64_t> bytes = TensorBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  if (!storage) return absl::InvalidArgumentError("Tensor::FromStorage got no storage");
  if (offset > storage->bytes() || *bytes > storage->bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat(*bytes, " bytes at ", offset, " do not fit in ",
                                              storage->bytes(), " bytes of storage"));
  }
  return Tensor(std::move(storage), offset, dtype, shape);
}

absl::StatusOr<Tensor> Tensor::FromStrings(std::vector<std::string> elements,
                                           const TensorShape& shape) {
  if (elements.size() != static_cast<uint64_t>(shape.elements())) {
    return absl::InvalidArgumentError(
        absl::StrCat(elements.size(), " strings were given for the shape ", shape.ToString(),
                     ", which has ", shape.elements(), " elements"));
  }
  return Tensor(StorageRef::Own(new StringStorage(std::move(elements))), 0, DType::kString, shape);
}

absl::StatusOr<Tensor> Tensor::Slice(int64_t begin, int64_t end) const {
  if (!valid() || shape_.rank() == 0) {
    return absl::InvalidArgumentError("A tensor without dimensions has no slices");
  }
  if (begin < 0 || end < begin || end > shape_.dim(0)) {
    return absl::OutOfRangeError(absl::StrCat("A slice cannot have the rows [", begin, ",", end,
                                              ") of a tensor of the shape ", shape_.ToString()));
  }
  std::vector<int64_t> dims(shape_.dims().begin(), shape_.dims().end());
  const int64_t row_elements = dims[0] == 0 ? 0 : shape_.elements() / dims[0];
  dims[0] = end - begin;
  absl::StatusOr<TensorShape> shape = TensorShape::Make(dims);
  if (!shape.ok()) return shape.status();
  return Tensor(storage_, offset_ + begin * row_elements * StrideBytes(dtype_), dtype_, *shape);
}

absl::StatusOr<Tensor> Tensor::Reshape(const TensorShape& shape) const {
  if (!valid() || shape.elements() != shape_.elements()) {
    return absl::InvalidArgumentError(absl::StrCat("Cannot reshape ", shape_.ToString(), " to ",
                                                   shape.ToString(),
                                                   ", which has another number of elements"));
  }
  return Tensor(storage_, offset_, dtype_, shape);
}

bool Tensor::TakeView(StorageRef* storage, DType dtype, absl::Span<const int64_t> dims) {
  const uint32_t element_bytes = DTypeBytes(dtype);
  int64_t bytes;
  if (element_bytes == 0 || !shape_.SetNear(dims)) return false;
  if (__builtin_mul_overflow(shape_.elements(), int64_t{element_bytes}, &bytes) ||
      static_cast<uint64_t>(bytes) > (*storage)->bytes()) {
    shape_ = TensorShape();
    return false;
  }
  storage_ = std::move(*storage);
  offset_ = 0;
  dtype_ = dtype;
  return true;
}

uint64_t Tensor::StringBytes() const {
  uint64_t sum = 0;
  for (const std::string& element : strings()) sum += element.size();
  return sum;
}

absl::Span<const std::string> Tensor::strings() const { return mutable_strings(); }

absl::Span<std::string> Tensor::mutable_strings() const {
  TRYST_DCHECK(dtype_ == DType::kString);
  return {static_cast<std::string*>(address()), static_cast<size_t>(shape_.elements())};
}

MemorySpace Tensor::space() const {
  if (!storage_) return {};
  MemorySpace space = storage_->space();
  if (space.kind == MemorySpace::Kind::kShared) space.segment_offset += offset_;
  return space;
}

}  // namespace tryst
