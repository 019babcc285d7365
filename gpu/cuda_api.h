#ifndef TRYST_GPU_CUDA_API_H_
#define TRYST_GPU_CUDA_API_H_

#include <cstddef>
#include <cstdint>

// The part of the CUDA driver's binary interface that Tryst calls, written after its documentation,
// so that neither building nor running needs the toolkit. cuda_api_test compares it with cuda.h
// where that is installed.
namespace tryst {
namespace cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  // CUdeviceptr.
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Allocation = unsigned long long;  // CUmemGenericAllocationHandle.

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kMapFailed = 205;
inline constexpr Result kAlreadyMapped = 208;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
// A call that is not allowed while a graph is captured, perhaps by another thread, returns this.
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureImplicit = 906;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;

// CUdevice_attribute
inline constexpr int kComputeMajor = 75;
inline constexpr int kComputeMinor = 76;
inline constexpr int kVirtualMemory = 102;
inline constexpr int kPosixHandles = 103;
inline constexpr int kReadOnlyHostMemory = 113;
inline constexpr int kGpuDirectRdma = 116;
inline constexpr int kGpuDirectWritesOrdering = 118;
inline constexpr int kDmaBuf = 124;

// CUpointer_attribute
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerBufferId = 7;
inline constexpr int kPointerOrdinal = 9;
inline constexpr int kPointerHasIpcHandle = 10;
inline constexpr int kPointerPool = 17;
inline constexpr int kPointerBlockId = 20;
inline constexpr int kMemoryTypeDevice = 2;

// Flags.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventNoTiming = 2;
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostDeviceMap = 2;
inline constexpr unsigned kHostReadOnly = 8;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kHandleFabric = 8;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;
inline constexpr int kRangeDmaBuf = 1;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kCapturesNothing = 0;

struct IpcHandle {
  unsigned char bytes[64];
};
struct FabricHandle {
  unsigned char bytes[64];
};
struct Uuid {
  unsigned char bytes[16];
};
struct Location {
  int type;
  int id;
};
struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* windows;
  struct {
    unsigned char compression;
    unsigned char gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
struct AccessDescription {
  Location location;
  int flags;
};

using HostFunction = void (*)(void* argument);

// X(name, parameters): what every driver since CUDA 11.4 exports.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define TRYST_CUDA_CALLS(X)                                                                       \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorString, (::tryst::cuda::Result error, const char** text))                           \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (Device * device, int ordinal))                                                  \
  X(cuDeviceGetName, (char* name, int bytes, Device device))                                      \
  X(cuDeviceGetPCIBusId, (char* id, int bytes, Device device))                                    \
  X(cuDeviceGetAttribute, (int* value, int attribute, Device device))                             \
  X(cuDeviceGetUuid_v2, (Uuid * uuid, Device device))                                             \
  X(cuDeviceTotalMem_v2, (size_t * bytes, Device device))                                         \
  X(cuDeviceCanAccessPeer, (int* can, Device device, Device peer))                                \
  X(cuDevicePrimaryCtxRetain, (Context * context, Device device))                                 \
  X(cuDevicePrimaryCtxRelease_v2, (Device device))                                                \
  X(cuCtxSetCurrent, (Context context))                                                           \
  X(cuCtxEnablePeerAccess, (Context peer, unsigned flags))                                        \
  X(cuMemAlloc_v2, (Address * address, size_t bytes))                                             \
  X(cuMemFree_v2, (Address address))                                                              \
  X(cuMemGetAddressRange_v2, (Address * base, size_t * bytes, Address address))                   \
  X(cuPointerGetAttribute, (void* value, int attribute, Address address))                         \
  X(cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                               \
  X(cuMemFreeHost, (void* address))                                                               \
  X(cuMemHostRegister_v2, (void* address, size_t bytes, unsigned flags))                          \
  X(cuMemHostUnregister, (void* address))                                                         \
  X(cuMemAddressReserve,                                                                          \
    (Address * address, size_t bytes, size_t alignment, Address wish, unsigned long long flags))  \
  X(cuMemAddressFree, (Address address, size_t bytes))                                            \
  X(cuMemCreate, (Allocation * made, size_t bytes, const AllocationProperties* properties,        \
                  unsigned long long flags))                                                      \
  X(cuMemRelease, (Allocation allocation))                                                        \
  X(cuMemMap, (Address address, size_t bytes, size_t offset, Allocation allocation,               \
               unsigned long long flags))                                                         \
  X(cuMemUnmap, (Address address, size_t bytes))                                                  \
  X(cuMemSetAccess,                                                                               \
    (Address address, size_t bytes, const AccessDescription* access, size_t count))               \
  X(cuMemGetAllocationGranularity,                                                                \
    (size_t * bytes, const AllocationProperties* properties, int option))                         \
  X(cuMemExportToShareableHandle,                                                                 \
    (void* handle, Allocation allocation, int type, unsigned long long flags))                    \
  X(cuMemImportFromShareableHandle, (Allocation * made, void* handle, int type))                  \
  X(cuMemRetainAllocationHandle, (Allocation * made, void* address))                              \
  X(cuMemGetAllocationPropertiesFromHandle,                                                       \
    (AllocationProperties * properties, Allocation allocation))                                   \
  X(cuMemAllocAsync, (Address * address, size_t bytes, Stream stream))                            \
  X(cuMemFreeAsync, (Address address, Stream stream))                                             \
  X(cuIpcGetMemHandle, (IpcHandle * handle, Address address))                                     \
  X(cuIpcOpenMemHandle_v2, (Address * address, IpcHandle handle, unsigned flags))                 \
  X(cuIpcCloseMemHandle, (Address address))                                                       \
  X(cuStreamCreate, (Stream * stream, unsigned flags))                                            \
  X(cuStreamDestroy_v2, (Stream stream))                                                          \
  X(cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                              \
  X(cuStreamQuery, (Stream stream))                                                               \
  X(cuStreamSynchronize, (Stream stream))                                                         \
  X(cuEventCreate, (Event * event, unsigned flags))                                               \
  X(cuEventDestroy_v2, (Event event))                                                             \
  X(cuEventRecord, (Event event, Stream stream))                                                  \
  X(cuEventQuery, (Event event))                                                                  \
  X(cuLaunchHostFunc, (Stream stream, HostFunction function, void* argument))                     \
  X(cuMemcpyAsync, (Address to, Address from, size_t bytes, Stream stream))                       \
  X(cuMemsetD8Async, (Address to, unsigned char value, size_t bytes, Stream stream))              \
  X(cuModuleLoadData, (Module * module, const void* image))                                       \
  X(cuModuleUnload, (Module module))                                                              \
  X(cuModuleGetFunction, (Function * function, Module module, const char* name))                  \
  X(cuLaunchKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,        \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                     Stream stream, void** parameters, void** extra))

// Calls that only newer drivers have; null where the driver is older.
#define TRYST_CUDA_NEWER_CALLS(X)                                                      \
  X(cuMemGetHandleForAddressRange,                                                     \
    (void* handle, Address address, size_t bytes, int type, unsigned long long flags)) \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                    \
  X(cuStreamIsCapturing, (Stream stream, int* status))

// One pointer for each call, under the driver's own name.
struct Calls {
#define TRYST_CUDA_MEMBER(name, parameters) Result(*name) parameters = nullptr;
  TRYST_CUDA_CALLS(TRYST_CUDA_MEMBER)
  TRYST_CUDA_NEWER_CALLS(TRYST_CUDA_MEMBER)
#undef TRYST_CUDA_MEMBER
};
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace cuda
}  // namespace tryst

#endif  // TRYST_GPU_CUDA_API_H_
