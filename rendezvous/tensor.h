#ifndef TRYST_RENDEZVOUS_TENSOR_H_
#define TRYST_RENDEZVOUS_TENSOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rendezvous/dtype.h"

namespace tryst {

// Where a tensor's bytes are.
struct MemorySpace {
  enum class Kind : uint8_t {
    kHost,
    kPinned,  // Host memory that a device can reach by DMA.
    kShared,  // Host memory inside a shared segment.
    kDevice,  // The address is valid on the device only; this code never dereferences it.
  };
  Kind kind = Kind::kHost;
  int32_t device_ordinal = -1;  // For kDevice; for kPinned the device, if known.
  uint64_t segment_id = 0;      // kShared.
  uint64_t segment_offset = 0;  // kShared: of the storage's first byte.
  bool host_readable() const { return kind != Kind::kDevice; }
};

// Dimensions, outermost first. A value; the product never overflows int64.
class TensorShape {
 public:
  static constexpr int kMaxRank = 8;         // In place, and in a wire's description of a tensor.
  static constexpr int kMaxLocalRank = 254;  // TensorFlow's limit.

  TensorShape() {}  // A scalar.
  TensorShape(const TensorShape& other) : elements_(other.elements_), rank_(other.rank_) {
    CopyDims(other);
  }
  TensorShape& operator=(const TensorShape& other) {
    if (this == &other) return *this;
    if (rank_ > kMaxRank) Unref();
    elements_ = other.elements_;
    rank_ = other.rank_;
    CopyDims(other);
    return *this;
  }
  ~TensorShape() {
    if (rank_ > kMaxRank) Unref();
  }
  // REQUIRES: what Make() accepts. Use it for our own shapes; a shape from outside must go through
  // Make().
  TensorShape(std::initializer_list<int64_t> dims);
  // kInvalidArgument: rank over kMaxLocalRank, a negative dimension, or more than 2^63 - 1
  // elements (zero dimensions left out, so that order does not matter).
  static absl::StatusOr<TensorShape> Make(absl::Span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t dim(int i) const { return dims().data()[i]; }
  absl::Span<const int64_t> dims() const { return {rank_ <= kMaxRank ? near_ : far_->dims, rank_}; }
  int64_t elements() const { return elements_; }
  std::string ToString() const;  // "[2,3]"

  friend bool operator==(const TensorShape& a, const TensorShape& b) {
    return a.dims() == b.dims();
  }
  friend bool operator!=(const TensorShape& a, const TensorShape& b) { return !(a == b); }

 private:
  friend class Tensor;
  // Dimensions that do not fit in place. Copies share them; they never change.
  struct FarDims {
    std::atomic<uint32_t> refs;
    int64_t dims[kMaxLocalRank];
  };

  absl::Status Set(absl::Span<const int64_t> dims);
  // As Set(), of dimensions that fit in place. False: they do not fit or no tensor has them, and
  // the shape is unchanged. REQUIRES: the shape is a scalar's.
  bool SetNear(absl::Span<const int64_t> dims) {
    if (dims.size() > kMaxRank) return false;
    int64_t elements = 1;
    bool empty = false;
    for (const int64_t dim : dims) {
      empty |= dim == 0;
      if (dim < 0 || (dim != 0 && __builtin_mul_overflow(elements, dim, &elements))) return false;
    }
    for (size_t i = 0; i < dims.size(); ++i) near_[i] = dims[i];
    rank_ = static_cast<uint8_t>(dims.size());
    elements_ = empty ? 0 : elements;
    return true;
  }
  void CopyDims(const TensorShape& other) {
    memcpy(near_, other.near_, sizeof(near_));  // All of the union.
    if (rank_ > kMaxRank) far_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  void Unref();

  int64_t elements_ = 1;
  uint8_t rank_ = 0;
  union {
    int64_t near_[kMaxRank] = {};
    FarDims* far_;  // A rank over kMaxRank has its dimensions there.
  };
};

// Bytes of `shape` elements of a fixed-size type. kInvalidArgument when the type has
// no fixed size or the product overflows.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, const TensorShape& shape);

// Something that `owner` keeps with a storage for as long as the bytes live: a NIC's registration
// of them. It is destroyed before the bytes, on the thread that drops the last reference.
class StorageNote {
 public:
  explicit StorageNote(const void* owner) : owner_(owner) {}
  StorageNote(const StorageNote&) = delete;
  StorageNote& operator=(const StorageNote&) = delete;
  virtual ~StorageNote() = default;

 private:
  friend class Storage;
  const void* const owner_;
  StorageNote* next_ = nullptr;
};

// Bytes that several tensors share. References are counted on any thread; the last Unref() calls
// OnUnused() on its own thread. A pool derives from it and takes its slot back there, so that a
// recycled buffer costs no allocation.
class Storage {
 public:
  Storage(void* data, uint64_t bytes, const MemorySpace& space, bool read_only = false)
      : read_only_(read_only), data_(data), bytes_(bytes), space_(space) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const MemorySpace& space() const { return space_; }
  bool read_only() const { return read_only_; }

  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    // With one reference left, nobody else can take another, so no read-modify-write is needed.
    if (refs_.load(std::memory_order_acquire) == 1 ||
        refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      if (!keeps_notes_) DropNotes();
      OnUnused();
    }
  }
  bool unique() const { return refs_.load(std::memory_order_acquire) == 1; }

  // The note that `owner` added, or null. REQUIRES, as AddNote(): the caller refers to it.
  StorageNote* FindNote(const void* owner) const {
    StorageNote* note = notes_.load(std::memory_order_acquire);
    while (note != nullptr && note->owner_ != owner) note = note->next_;
    return note;
  }
  // REQUIRES: the storage has no note of the same owner.
  void AddNote(std::unique_ptr<StorageNote> note);

 protected:
  virtual ~Storage() { DropNotes(); }
  // The last reference is gone. Deletes the storage, or keeps it for another Reuse().
  virtual void OnUnused() { delete this; }
  // For pools whose bytes outlive their last reference. Their notes are destroyed by DropNotes(),
  // which the pool calls before it frees the bytes, or with the object.
  void KeepNotes() { keeps_notes_ = true; }
  void DropNotes() {
    if (notes_.load(std::memory_order_relaxed) != nullptr) DropAllNotes();
  }
  // REQUIRES: called from or after OnUnused(). Gives it one reference again.
  void Reuse() { refs_.store(1, std::memory_order_relaxed); }

 private:
  void DropAllNotes();

  std::atomic<uint32_t> refs_{1};
  const bool read_only_;
  bool keeps_notes_ = false;
  void* const data_;
  const uint64_t bytes_;
  const MemorySpace space_;
  std::atomic<StorageNote*> notes_{nullptr};  // Few.
};

// Owns one reference.
class StorageRef {
 public:
  StorageRef() = default;
  // Takes over the reference that a new or reused Storage is born with.
  static StorageRef Own(Storage* storage) { return StorageRef(storage); }
  StorageRef(const StorageRef& other) : storage_(other.storage_) {
    if (storage_ != nullptr) storage_->Ref();
  }
  StorageRef(StorageRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageRef& operator=(StorageRef other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StorageRef() {
    if (storage_ != nullptr) storage_->Unref();
  }
  Storage* get() const { return storage_; }
  Storage* operator->() const { return storage_; }
  explicit operator bool() const { return storage_ != nullptr; }

 private:
  explicit StorageRef(Storage* storage) : storage_(storage) {}
  Storage* storage_ = nullptr;
};

// Typed bytes with a shape. A cheap value: a copy shares the bytes. After Send the bytes belong to
// every receiver and must not change; debug builds check that
// (LocalRendezvous::Options::check_immutable).
class Tensor {
 public:
  static constexpr size_t kAlignment = 64;
  // Runs once, on whichever thread drops the last tensor that shares the bytes.
  using Deleter = absl::AnyInvocable<void() &&>;

  Tensor() = default;  // Its type is kInvalid: what a dead item carries.
  Tensor(const Tensor&) = default;
  Tensor& operator=(const Tensor&) = default;
  // Leaves an invalid tensor behind.
  Tensor(Tensor&& other) noexcept
      : storage_(std::move(other.storage_)),
        offset_(other.offset_),
        dtype_(std::exchange(other.dtype_, DType::kInvalid)),
        shape_(other.shape_) {}
  Tensor& operator=(Tensor&& other) noexcept {
    if (this == &other) return *this;
    storage_ = std::move(other.storage_);
    offset_ = other.offset_;
    dtype_ = std::exchange(other.dtype_, DType::kInvalid);
    shape_ = other.shape_;
    return *this;
  }

  // Host memory, aligned to kAlignment, not cleared; kString gets empty elements.
  // kInvalidArgument (type, overflow); kResourceExhausted (no memory, or over 512 GiB).
  static absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape);
  // Foreign memory, without a copy. On an error `deleter` has run.
  // kInvalidArgument: a type without fixed size, overflow, null for more than 0 bytes.
  static absl::StatusOr<Tensor> Adopt(void* data, DType dtype, const TensorShape& shape,
                                      const MemorySpace& space, Deleter deleter);
  // A part of `storage` as a tensor. kInvalidArgument, kOutOfRange.
  static absl::StatusOr<Tensor> FromStorage(StorageRef storage, uint64_t offset, DType dtype,
                                            const TensorShape& shape);
  // Makes this one the first bytes of `*storage`, which it takes. False, and nothing has happened:
  // for a string, for more than TensorShape::kMaxRank dimensions, and for all that
  // TensorShape::Make() and FromStorage() have an error for. In place, for what is right nearly
  // always. REQUIRES: !valid(), as a new one is; `*storage` holds one.
  bool TakeView(StorageRef* storage, DType dtype, absl::Span<const int64_t> dims);
  // kInvalidArgument: the shape needs another number of elements.
  static absl::StatusOr<Tensor> FromStrings(std::vector<std::string> elements,
                                            const TensorShape& shape);

  // Rows [begin, end) of the outermost dimension. Shares the bytes.
  // kInvalidArgument (scalar), kOutOfRange.
  absl::StatusOr<Tensor> Slice(int64_t begin, int64_t end) const;
  // Shows the elements in another shape. kInvalidArgument.
  absl::StatusOr<Tensor> Reshape(const TensorShape& shape) const;

  // As if it had been moved from: lets go of the bytes.
  void Reset() {
    storage_ = StorageRef();
    dtype_ = DType::kInvalid;
    if (shape_.rank() > TensorShape::kMaxRank) shape_ = TensorShape();
  }

  // As Reset(), and gives the bytes to the caller.
  StorageRef TakeStorage() {
    StorageRef storage = std::move(storage_);
    Reset();
    return storage;
  }

  bool valid() const { return dtype_ != DType::kInvalid; }
  DType dtype() const { return dtype_; }
  const TensorShape& shape() const { return shape_; }
  // For a string tensor: the total length of its elements, found by visiting each of them.
  uint64_t bytes() const {
    if (dtype_ == DType::kString) return StringBytes();
    return static_cast<uint64_t>(shape_.elements()) * DTypeBytes(dtype_);
  }
  // Null only for an invalid tensor; of 0 bytes it may be anything. REQUIRES: not kString.
  const void* data() const { return address(); }
  // REQUIRES: nobody else reads it yet; !read_only().
  void* mutable_data() const { return address(); }
  // Whether the memory's owner has forbidden writes. Such a tensor may be sent, but not be a
  // destination.
  bool read_only() const { return storage_ && storage_->read_only(); }
  template <typename T>
  const T* data_as() const {
    return static_cast<const T*>(data());
  }
  // REQUIRES: kString.
  absl::Span<const std::string> strings() const;
  absl::Span<std::string> mutable_strings() const;

  // Where this tensor's first byte lies. For a slice, segment_offset includes the slice's own
  // offset.
  MemorySpace space() const;
  // As space().host_readable().
  bool on_host() const { return !storage_ || storage_->space().host_readable(); }
  const StorageRef& storage() const { return storage_; }
  uint64_t storage_offset() const { return offset_; }
  bool SharesBytesWith(const Tensor& other) const {
    return storage_.get() != nullptr && storage_.get() == other.storage_.get();
  }

 private:
  Tensor(StorageRef storage, uint64_t offset, DType dtype, const TensorShape& shape)
      : storage_(std::move(storage)), offset_(offset), dtype_(dtype), shape_(shape) {}
  uint64_t StringBytes() const;
  void* address() const {
    return storage_ ? static_cast<char*>(storage_->data()) + offset_ : nullptr;
  }

  StorageRef storage_;
  uint64_t offset_ = 0;
  DType dtype_ = DType::kInvalid;
  TensorShape shape_;
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_TENSOR_H_
