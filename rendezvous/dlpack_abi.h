#ifndef TRYST_RENDEZVOUS_DLPACK_ABI_H_
#define TRYST_RENDEZVOUS_DLPACK_ABI_H_

#include <cstddef>
#include <cstdint>

// The C structures of DLPack 1.x, as its specification lays them out; a frozen ABI. The
// names are its own, in a namespace, so that a program may include <dlpack/dlpack.h> too
// and cast.
namespace tryst {
namespace dlpack {

inline constexpr uint32_t kMajorVersion = 1;
inline constexpr uint32_t kMinorVersion = 1;

inline constexpr uint64_t kFlagReadOnly = 1u << 0;
inline constexpr uint64_t kFlagIsCopied = 1u << 1;
inline constexpr uint64_t kFlagSubbyteTypePadded = 1u << 2;

enum DLDeviceType : int32_t {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLCUDAManaged = 13,
};

enum DLDataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e5m2 = 12,
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // In elements; null: compact, row by row.
  uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

// The C functions of a library, which the type of its tensors shows as the capsule
// `__dlpack_c_exchange_api__` (DLPack 1.2). Each returns 0, or else leaves a Python exception.
struct DLExchangeApi {
  DLPackVersion version;
  const void* previous;  // An older version's table; null: there is none.
  int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out,
                                  void* error_context,
                                  void (*set_error)(void* error_context, const char* kind,
                                                    const char* message));
  // Makes no stream wait for another.
  int (*managed_tensor_from_py_object_no_sync)(void* object, DLManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out);
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // May be null.
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

static_assert(sizeof(void*) != 8 || (sizeof(DLTensor) == 48 && offsetof(DLTensor, shape) == 24 &&
                                     sizeof(DLManagedTensorVersioned) == 80 &&
                                     offsetof(DLManagedTensorVersioned, dl_tensor) == 32 &&
                                     offsetof(DLExchangeApi, current_work_stream) == 48),
              "the layout that every DLPack 1.x program has compiled in");

}  // namespace dlpack
}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_DLPACK_ABI_H_
