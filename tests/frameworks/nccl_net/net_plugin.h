#ifndef TRYST_TESTS_FRAMEWORKS_NCCL_NET_NET_PLUGIN_H_
#define TRYST_TESTS_FRAMEWORKS_NCCL_NET_NET_PLUGIN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/nccl/abi.h"

namespace tryst::nccl_net {

using nccl::Result;

// Any net plugin through one of its tables, as NCCL sees it. What a version lacks is filled in as
// NCCL's core does.
class NetPlugin {
 public:
  // Version 0: the newest, as NCCL chooses.
  static absl::StatusOr<std::unique_ptr<NetPlugin>> Open(const std::string& file, int version);
  // The versions of the tables that the file exports, newest first. kNotFound: why it does not
  // load.
  static absl::StatusOr<std::vector<int>> Versions(const std::string& file);

  int version() const { return version_; }
  const std::string& name() const { return name_; }

  std::function<Result(void** context)> init;
  std::function<Result(int* count)> devices;
  std::function<Result(int device, nccl::PropertiesV12* out)> properties;
  std::function<Result(void* context, int device, void* handle, void** comm)> listen;
  std::function<Result(void* context, int device, void* handle, void** comm)> connect;
  std::function<Result(void* listen_comm, void** comm)> accept;
  std::function<Result(void* comm, void* data, size_t bytes, int type, void** memory)> reg;
  std::function<Result(void* comm, void* memory)> dereg;
  std::function<Result(void* comm, void* data, size_t bytes, int tag, void* memory, void** request)>
      isend;
  std::function<Result(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                       void** request)>
      irecv;
  std::function<Result(void* comm, int count, void** data, int* bytes, void** memory,
                       void** request)>
      iflush;
  std::function<Result(void* request, int* done, int* sizes)> test;
  std::function<Result(void* comm)> close_send;
  std::function<Result(void* comm)> close_recv;
  std::function<Result(void* comm)> close_listen;
  std::function<Result(int* device, std::vector<int> members)> make_virtual;  // May be empty.
  std::function<Result(void* context)> finalize;                              // May be empty.

  // The warnings that all plugins of this process have logged.
  static std::vector<std::string> Warnings();

 private:
  NetPlugin() = default;
  template <typename Table, typename Properties>
  void Fill(const Table* table);

  int version_ = 0;
  std::string name_;
};

}  // namespace tryst::nccl_net

#endif  // TRYST_TESTS_FRAMEWORKS_NCCL_NET_NET_PLUGIN_H_
