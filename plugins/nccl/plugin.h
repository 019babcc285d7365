#ifndef TRYST_PLUGINS_NCCL_PLUGIN_H_
#define TRYST_PLUGINS_NCCL_PLUGIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "plugins/nccl/abi.h"
#include "plugins/nccl/comm.h"
#include "plugins/nccl/connecting.h"
#include "plugins/nccl/devices.h"

namespace tryst::nccl {

inline constexpr char kPluginName[] = "Tryst";

// One NCCL communicator's use of the plugin.
struct Context {
  int traffic_class = kUndefined;
};

// The implementation behind every version's table. A process has one, because the older versions
// pass nothing that could tell two apart. Thread-safe.
class Plugin {
 public:
  static Plugin& Get();

  // `context` may be null; then NCCL never calls Finalize().
  Result Init(void** context, int traffic_class, LogFunction log);
  Result Finalize(void* context);
  Result Devices(int* count);
  // The strings live as long as the process.
  Result Properties(int device, PropertiesV12* out);
  Result MakeVirtual(const int* members, int count, int* device);

  Result Listen(void* context, int device, void* handle, void** listen_comm);
  Result Connect(void* context, int device, int traffic_class, void* handle, void** send_comm);
  static Result Accept(void* listen_comm, void** recv_comm);
  static Result Close(void* comm);
  Result CloseListen(void* listen_comm);

  static Result Register(void* comm, void* data, uint64_t bytes, int type, void** memory);
  static Result RegisterDmaBuf(void* comm, void* data, uint64_t bytes, int type, uint64_t offset,
                               int fd, void** memory);
  static Result Deregister(void* memory);
  static Result Send(void* comm, const void* data, uint64_t bytes, int tag, void* memory,
                     void** request);
  static Result Receive(void* comm, int count, void** data, const uint64_t* bytes, const int* tags,
                        void** memory, void** request);
  static Result Flush(void* comm, int count, void** data, const int* bytes, void** memory,
                      void** request);
  static Result Test(void* request, int* done, int* sizes);

 private:
  Plugin() = default;
  absl::Status StartThreads(const Settings& settings, DeviceKind kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<CommDevice> OpenDevice(int device, int traffic_class)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::string> HostOf(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  // These are never destroyed: NCCL may unload a plugin that it never finalized.
  Engine engine_;
  DeviceSearch search_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Device>> devices_ ABSL_GUARDED_BY(mu_);
  std::set<Context*> contexts_ ABSL_GUARDED_BY(mu_);
  uint64_t next_connecting_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, std::unique_ptr<Connecting>> connecting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_PLUGIN_H_
