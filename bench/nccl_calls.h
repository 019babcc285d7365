#ifndef TRYST_BENCH_NCCL_CALLS_H_
#define TRYST_BENCH_NCCL_CALLS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "gpu/cuda_api.h"

namespace tryst {

// NCCL's point-to-point calls, from the libnccl.so.2 that the caller names.
struct NcclCalls {
  struct UniqueId {
    char bytes[128];
  };
  using Communicator = struct NcclCommunicator*;
  static constexpr int kInt8 = 0;

  int (*ncclGetVersion)(int* version) = nullptr;
  int (*ncclGetUniqueId)(UniqueId* id) = nullptr;
  int (*ncclCommInitRank)(Communicator* made, int ranks, UniqueId id, int rank) = nullptr;
  int (*ncclCommDestroy)(Communicator communicator) = nullptr;
  int (*ncclSend)(const void* from, size_t count, int type, int peer, Communicator communicator,
                  cuda::Stream stream) = nullptr;
  int (*ncclRecv)(void* into, size_t count, int type, int peer, Communicator communicator,
                  cuda::Stream stream) = nullptr;

  static absl::StatusOr<NcclCalls> Load(const std::string& library);
};

}  // namespace tryst

#endif  // TRYST_BENCH_NCCL_CALLS_H_
