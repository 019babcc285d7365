#ifndef TRYST_PLUGINS_NCCL_ABI_H_
#define TRYST_PLUGINS_NCCL_ABI_H_

#include <cstddef>
#include <cstdint>

// The interface between NCCL and a net plugin, version 6 to version 12: layouts and numbers as
// NCCL's public headers fix them, in our own words. NCCL 2.28 asks a plugin for ncclNetPlugin_v11
// and then for older ones; NCCL 2.30 asks for v12 first.
namespace tryst::nccl {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

inline constexpr int kHandleBytes = 128;
inline constexpr int kMaxRequests = 32;  // For each comm; a sender may have as many for each tag.
inline constexpr int kMaxGroup = 8;      // Receives in one request.
inline constexpr int kPointerHost = 1;
inline constexpr int kPointerCuda = 2;
inline constexpr int kPointerDmaBuf = 4;
inline constexpr int kUndefined = -1;  // Stands for a traffic class, rail or plane that nobody set.

enum LogLevel : int {
  kLogNone = 0,
  kLogVersion,
  kLogWarning,
  kLogInformation,
  kLogAbort,
  kLogTrace
};
inline constexpr unsigned long kLogInit = 0x1;
inline constexpr unsigned long kLogNet = 0x10;

using LogFunction = void (*)(int level, unsigned long flags, const char* file, int line,
                             const char* format, ...);
using ProfilerFunction = Result (*)(void** event, int type, void* parent, int64_t plugin,
                                    void* data);

struct CommConfig {
  int traffic_class;
};

struct DeviceHandle {  // Describes offload to a GPU's own network code, which this plugin has not.
  int type;
  int version;
  void* handle;
  size_t size;
  int needs_proxy_progress;
};

struct MemberDevices {  // For versions 9 to 11.
  int count;
  int devices[4];
};

struct MemberDevicesV12 {
  int count;
  int devices[8];
};

struct PropertiesV6 {
  char* name;
  char* pci_path;  // Null for a device that is on no bus.
  uint64_t guid;
  int pointer_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
};

struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};

struct PropertiesV9 {  // For version 10, too.
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  MemberDevices members;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  MemberDevices members;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
  int max_multi_request;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  MemberDevicesV12 members;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
  int max_multi_request;
  int16_t rail;
  int16_t plane;
};

struct CommAttributes {
  int32_t max_concurrent_peers;
  int32_t min_concurrent_peers;
  int32_t max_flows_per_peer;
  int32_t min_flows_per_peer;
};

struct NetAttributes {
  CommAttributes send;
  CommAttributes receive;
  uint32_t operation;
  uint32_t algorithm;
  uint32_t protocol;
};

// The tables, oldest first. `connect` and `accept` return null to be called again, as `isend`,
// `irecv` and `iflush` do with their request.
struct TableV6 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV6* out);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm);
  Result (*accept)(void* listen_comm, void** recv_comm);
  Result (*register_memory)(void* comm, void* data, int bytes, int type, void** memory);
  Result (*register_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                             int fd, void** memory);
  Result (*deregister)(void* comm, void* memory);
  Result (*isend)(void* comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* comm, int count, void** data, int* bytes, int* tags, void** memory,
                  void** request);
  Result (*iflush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
};

struct TableV7 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV7* out);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle** offload);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** offload);
  Result (*register_memory)(void* comm, void* data, int bytes, int type, void** memory);
  Result (*register_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                             int fd, void** memory);
  Result (*deregister)(void* comm, void* memory);
  Result (*isend)(void* comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* comm, int count, void** data, int* bytes, int* tags, void** memory,
                  void** request);
  Result (*iflush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* comm, int count, void* request);
};

struct TableV8 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8* out);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle** offload);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** offload);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                             int fd, void** memory);
  Result (*deregister)(void* comm, void* memory);
  Result (*isend)(void* comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* comm, int count, void** data, int* bytes, int* tags, void** memory,
                  void** request);
  Result (*iflush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* comm, int count, void* request);
};

struct TableV9 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9* out);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle** offload);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** offload);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                             int fd, void** memory);
  Result (*deregister)(void* comm, void* memory);
  Result (*isend)(void* comm, void* data, size_t bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                  void** request);
  Result (*iflush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* comm, int count, void* request);
  Result (*make_virtual_device)(int* device, MemberDevices* members);
};

struct TableV10 {
  const char* name;
  Result (*init)(LogFunction log, ProfilerFunction profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9* out);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, CommConfig* config, void* handle, void** send_comm,
                    DeviceHandle** offload);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** offload);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                             int fd, void** memory);
  Result (*deregister)(void* comm, void* memory);
  Result (*isend)(void* comm, void* data, size_t bytes, int tag, void* memory, void* profiled,
                  void** request);
  Result (*irecv)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                  void** profiled, void** request);
  Result (*iflush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* comm, int count, void* request);
  Result (*make_virtual_device)(int* device, MemberDevices* members);
};

template <typename Properties, typename Members>
struct TableWithContext {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, CommConfig* config, LogFunction log,
                 ProfilerFunction profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* out);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm,
                    DeviceHandle** offload);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** offload);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*register_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                             int fd, void** memory);
  Result (*deregister)(void* comm, void* memory);
  Result (*isend)(void* comm, void* data, size_t bytes, int tag, void* memory, void* profiled,
                  void** request);
  Result (*irecv)(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                  void** profiled, void** request);
  Result (*iflush)(void* comm, int count, void** data, int* bytes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* comm, int count, void* request);
  Result (*make_virtual_device)(int* device, Members* members);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, NetAttributes* attributes);
};
using TableV11 = TableWithContext<PropertiesV11, MemberDevices>;
using TableV12 = TableWithContext<PropertiesV12, MemberDevicesV12>;

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_ABI_H_
