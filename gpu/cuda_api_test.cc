// Compares the numbers and types that cuda_api.h declares with those in the toolkit's own header.

#include "gpu/cuda_api.h"

#include <cuda.h>

#include <type_traits>

#include "gtest/gtest.h"

namespace tryst {
namespace {

static_assert(cuda::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(cuda::kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(cuda::kMapFailed == CUDA_ERROR_MAP_FAILED);
static_assert(cuda::kAlreadyMapped == CUDA_ERROR_ALREADY_MAPPED);
static_assert(cuda::kPeerAccessUnsupported == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
static_assert(cuda::kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cuda::kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(cuda::kPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(cuda::kHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(cuda::kCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(cuda::kCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(cuda::kCapturesNothing == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(cuda::kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(cuda::kNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(cuda::kNotSupported == CUDA_ERROR_NOT_SUPPORTED);

static_assert(cuda::kComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cuda::kComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cuda::kVirtualMemory == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(cuda::kPosixHandles ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(cuda::kGpuDirectRdma == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(cuda::kGpuDirectWritesOrdering ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(cuda::kDmaBuf == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(cuda::kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cuda::kPointerBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(cuda::kPointerOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cuda::kPointerHasIpcHandle == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(cuda::kPointerPool == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
static_assert(cuda::kPointerBlockId == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);
static_assert(cuda::kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);

static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kEventNoTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kHostPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(cuda::kHostPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cuda::kHostDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(cuda::kHostDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(cuda::kIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cuda::kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(cuda::kHandlePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(cuda::kHandleFabric == CU_MEM_HANDLE_TYPE_FABRIC);
static_assert(cuda::kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(cuda::kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(cuda::kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(cuda::kRangeDmaBuf == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);

static_assert(sizeof(cuda::IpcHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(cuda::FabricHandle) == sizeof(CUmemFabricHandle));
static_assert(sizeof(cuda::Uuid) == sizeof(CUuuid));
static_assert(sizeof(cuda::Address) == sizeof(CUdeviceptr));
static_assert(sizeof(cuda::AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(cuda::AllocationProperties, flags.gpu_direct_rdma) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(cuda::AllocationProperties, location) ==
              offsetof(CUmemAllocationProp, location));
static_assert(sizeof(cuda::AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(cuda::AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));

template <typename Function>
struct ArgumentCount;
template <typename Result, typename... Arguments>
struct ArgumentCount<Result (*)(Arguments...)> {
  static constexpr size_t value = sizeof...(Arguments);
};

TEST(CudaApiTest, EveryCallTakesAsManyArguments) {
#define TRYST_COMPARE(name, parameters)                                         \
  static_assert(ArgumentCount<decltype(cuda::Calls::name)>::value ==            \
                    ArgumentCount<std::add_pointer_t<decltype(::name)>>::value, \
                #name);
  TRYST_CUDA_CALLS(TRYST_COMPARE)
  TRYST_CUDA_NEWER_CALLS(TRYST_COMPARE)
#undef TRYST_COMPARE
}

}  // namespace
}  // namespace tryst
