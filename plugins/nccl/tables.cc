// One implementation behind seven versions of the table; each version writes only where it differs.
#include <algorithm>
#include <type_traits>

#include "plugins/nccl/abi.h"
#include "plugins/nccl/plugin.h"

namespace tryst::nccl {
namespace {

Plugin& plugin() { return Plugin::Get(); }

Result InitOnce(LogFunction log) { return plugin().Init(nullptr, kUndefined, log); }
Result InitV10(LogFunction log, ProfilerFunction) { return InitOnce(log); }
Result InitV11(void** context, uint64_t, CommConfig* config, LogFunction log, ProfilerFunction) {
  return plugin().Init(context, config != nullptr ? config->traffic_class : kUndefined, log);
}
Result Finalize(void* context) { return plugin().Finalize(context); }
Result Devices(int* count) { return plugin().Devices(count); }

template <typename Properties, typename = void>
struct HasMembers : std::false_type {};
template <typename Properties>
struct HasMembers<Properties, std::void_t<decltype(Properties::members)>> : std::true_type {};
template <typename Properties, typename = void>
struct HasMultiRequest : std::false_type {};
template <typename Properties>
struct HasMultiRequest<Properties, std::void_t<decltype(Properties::max_multi_request)>>
    : std::true_type {};

template <typename Properties>
Result GetProperties(int device, Properties* out) {
  PropertiesV12 all;
  const Result result = plugin().Properties(device, &all);
  if (result != kSuccess) return result;
  *out = Properties();
  out->name = all.name;
  out->pci_path = all.pci_path;
  out->guid = all.guid;
  out->pointer_support = all.pointer_support;
  out->speed_mbps = all.speed_mbps;
  out->port = all.port;
  out->latency_us = all.latency_us;
  out->max_comms = all.max_comms;
  out->max_receives = all.max_receives;
  // Version 7 added offload, which we have not: its fields stay zero.
  if constexpr (std::is_same_v<Properties, PropertiesV8> || HasMembers<Properties>::value) {
    out->registration_is_global = all.registration_is_global;
  }
  if constexpr (HasMembers<Properties>::value) {
    out->force_flush = all.force_flush;
    const int room = static_cast<int>(std::size(out->members.devices));
    out->members.count = std::min(all.members.count, room);
    std::copy_n(all.members.devices, out->members.count, out->members.devices);
    out->max_p2p_bytes = all.max_p2p_bytes;
    out->max_collective_bytes = all.max_collective_bytes;
  }
  if constexpr (HasMultiRequest<Properties>::value) {
    out->max_multi_request = all.max_multi_request;
  }
  if constexpr (std::is_same_v<Properties, PropertiesV12>) {
    out->rail = all.rail;
    out->plane = all.plane;
  }
  return kSuccess;
}

Result Listen(int device, void* handle, void** comm) {
  return plugin().Listen(nullptr, device, handle, comm);
}
Result ListenV11(void* context, int device, void* handle, void** comm) {
  return plugin().Listen(context, device, handle, comm);
}
Result ConnectV6(int device, void* handle, void** comm) {
  return plugin().Connect(nullptr, device, kUndefined, handle, comm);
}
Result ConnectV7(int device, void* handle, void** comm, DeviceHandle**) {
  return plugin().Connect(nullptr, device, kUndefined, handle, comm);
}
Result ConnectV10(int device, CommConfig* config, void* handle, void** comm, DeviceHandle**) {
  return plugin().Connect(nullptr, device, config != nullptr ? config->traffic_class : kUndefined,
                          handle, comm);
}
Result ConnectV11(void* context, int device, void* handle, void** comm, DeviceHandle**) {
  return plugin().Connect(context, device, kUndefined, handle, comm);
}
Result AcceptV6(void* listen_comm, void** comm) { return Plugin::Accept(listen_comm, comm); }
Result AcceptV7(void* listen_comm, void** comm, DeviceHandle**) {
  return Plugin::Accept(listen_comm, comm);
}

template <typename Size>
Result Register(void* comm, void* data, Size bytes, int type, void** memory) {
  return Plugin::Register(comm, data, static_cast<uint64_t>(bytes), type, memory);
}
Result RegisterDmaBuf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                      void** memory) {
  return Plugin::RegisterDmaBuf(comm, data, bytes, type, offset, fd, memory);
}
Result Deregister(void*, void* memory) { return Plugin::Deregister(memory); }

template <typename Size>
Result Send(void* comm, void* data, Size bytes, int tag, void* memory, void** request) {
  return Plugin::Send(comm, data, static_cast<uint64_t>(bytes), tag, memory, request);
}
Result SendV10(void* comm, void* data, size_t bytes, int tag, void* memory, void*, void** request) {
  return Plugin::Send(comm, data, bytes, tag, memory, request);
}
template <typename Size>
Result Receive(void* comm, int count, void** data, Size* bytes, int* tags, void** memory,
               void** request) {
  uint64_t wide[kMaxGroup] = {};
  for (int i = 0; i < std::min(count, kMaxGroup); ++i) wide[i] = static_cast<uint64_t>(bytes[i]);
  return Plugin::Receive(comm, count, data, wide, tags, memory, request);
}
Result ReceiveV10(void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
                  void**, void** request) {
  return Receive<size_t>(comm, count, data, bytes, tags, memory, request);
}
Result Flush(void* comm, int count, void** data, int* bytes, void** memory, void** request) {
  return Plugin::Flush(comm, count, data, bytes, memory, request);
}
Result Test(void* request, int* done, int* bytes) { return Plugin::Test(request, done, bytes); }
Result Close(void* comm) { return Plugin::Close(comm); }
Result CloseListen(void* comm) { return plugin().CloseListen(comm); }

template <typename Members>
Result MakeVirtual(int* device, Members* members) {
  return plugin().MakeVirtual(members->devices, members->count, device);
}

template <typename Table>
constexpr Table TableFromV11() {
  return {kPluginName,     &InitV11,    &Devices,  &GetProperties,
          &ListenV11,      &ConnectV11, &AcceptV7, &Register<size_t>,
          &RegisterDmaBuf, &Deregister, &SendV10,  &ReceiveV10,
          &Flush,          &Test,       &Close,    &Close,
          &CloseListen,    nullptr,     nullptr,   &MakeVirtual,
          &Finalize,       nullptr};
}

}  // namespace
}  // namespace tryst::nccl

#define TRYST_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace tryst::nccl {

TRYST_NCCL_EXPORT const TableV6 ncclNetPlugin_v6 = {
    kPluginName, &InitOnce,      &Devices,        &GetProperties, &Listen,     &ConnectV6,
    &AcceptV6,   &Register<int>, &RegisterDmaBuf, &Deregister,    &Send<int>,  &Receive<int>,
    &Flush,      &Test,          &Close,          &Close,         &CloseListen};

TRYST_NCCL_EXPORT const TableV7 ncclNetPlugin_v7 = {
    kPluginName, &InitOnce,     &Devices,       &GetProperties,  &Listen,
    &ConnectV7,  &AcceptV7,     &Register<int>, &RegisterDmaBuf, &Deregister,
    &Send<int>,  &Receive<int>, &Flush,         &Test,           &Close,
    &Close,      &CloseListen,  nullptr,        nullptr};

TRYST_NCCL_EXPORT const TableV8 ncclNetPlugin_v8 = {
    kPluginName,     &InitOnce,   &Devices,   &GetProperties,
    &Listen,         &ConnectV7,  &AcceptV7,  &Register<size_t>,
    &RegisterDmaBuf, &Deregister, &Send<int>, &Receive<int>,
    &Flush,          &Test,       &Close,     &Close,
    &CloseListen,    nullptr,     nullptr};

TRYST_NCCL_EXPORT const TableV9 ncclNetPlugin_v9 = {
    kPluginName,     &InitOnce,   &Devices,      &GetProperties,
    &Listen,         &ConnectV7,  &AcceptV7,     &Register<size_t>,
    &RegisterDmaBuf, &Deregister, &Send<size_t>, &Receive<size_t>,
    &Flush,          &Test,       &Close,        &Close,
    &CloseListen,    nullptr,     nullptr,       &MakeVirtual};

TRYST_NCCL_EXPORT const TableV10 ncclNetPlugin_v10 = {
    kPluginName,     &InitV10,    &Devices,  &GetProperties,
    &Listen,         &ConnectV10, &AcceptV7, &Register<size_t>,
    &RegisterDmaBuf, &Deregister, &SendV10,  &ReceiveV10,
    &Flush,          &Test,       &Close,    &Close,
    &CloseListen,    nullptr,     nullptr,   &MakeVirtual};

TRYST_NCCL_EXPORT const TableV11 ncclNetPlugin_v11 = TableFromV11<TableV11>();
TRYST_NCCL_EXPORT const TableV12 ncclNetPlugin_v12 = TableFromV11<TableV12>();

}  // namespace tryst::nccl
