#include "tests/frameworks/nccl_net/net_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace tryst::nccl_net {
namespace {

using namespace nccl;  // NOLINT(google-build-using-namespace): the tables' names.

struct Log {
  Mutex mu;
  std::vector<std::string> warnings ABSL_GUARDED_BY(mu);
};

Log& TheLog() {
  static Log* const log = new Log();
  return *log;
}

void TakeLine(int level, unsigned long, const char*, int, const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (getenv("NCCL_NET_SUITE_LOG") != nullptr) fprintf(stderr, "  log %d: %s\n", level, line);
  if (level != kLogWarning) return;
  Log& log = TheLog();
  MutexLock lock(&log.mu);
  log.warnings.emplace_back(line);
}

Result IgnoreEvent(void**, int, void*, int64_t, void*) { return kSuccess; }

template <typename Properties, typename = void>
struct HasMembers : std::false_type {};
template <typename Properties>
struct HasMembers<Properties, std::void_t<decltype(Properties::members)>> : std::true_type {};

template <typename Properties>
void Widen(const Properties& in, PropertiesV12* out) {
  *out = PropertiesV12();
  out->name = in.name;
  out->pci_path = in.pci_path;
  out->guid = in.guid;
  out->pointer_support = in.pointer_support;
  out->speed_mbps = in.speed_mbps;
  out->port = in.port;
  out->latency_us = in.latency_us;
  out->max_comms = in.max_comms;
  out->max_receives = in.max_receives;
  out->max_p2p_bytes = size_t{1} << 30;
  if constexpr (HasMembers<Properties>::value) {
    out->members.count = in.members.count;
    const int room = static_cast<int>(std::size(in.members.devices));
    std::copy_n(in.members.devices, std::min(std::max(in.members.count, 0), room),
                out->members.devices);
    out->max_p2p_bytes = in.max_p2p_bytes;
  }
}

void* Symbol(void* library, int version) {
  return dlsym(library, absl::StrCat("ncclNetPlugin_v", version).c_str());
}

absl::StatusOr<void*> Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  return library;
}

}  // namespace

std::vector<std::string> NetPlugin::Warnings() {
  Log& log = TheLog();
  MutexLock lock(&log.mu);
  return log.warnings;
}

absl::StatusOr<std::vector<int>> NetPlugin::Versions(const std::string& file) {
  absl::StatusOr<void*> library = Load(file);
  if (!library.ok()) return library.status();
  std::vector<int> out;
  for (int version = 12; version >= 6; --version) {
    if (Symbol(*library, version) != nullptr) out.push_back(version);
  }
  return out;
}

// The types of the table's functions tell what differs between versions.
template <typename Table, typename Properties>
void NetPlugin::Fill(const Table* t) {
  name_ = t->name;
  devices = t->devices;
  accept = [t](void* comm, void** out) {
    if constexpr (std::is_invocable_v<decltype(t->accept), void*, void**>) {
      return t->accept(comm, out);
    } else {
      DeviceHandle* offload = nullptr;
      return t->accept(comm, out, &offload);
    }
  };
  properties = [t](int device, PropertiesV12* out) {
    Properties own = {};
    const Result result = t->get_properties(device, &own);
    Widen(own, out);
    return result;
  };
  init = [t](void** context) {
    *context = nullptr;
    using Init = decltype(t->init);
    if constexpr (std::is_invocable_v<Init, LogFunction>) return t->init(&TakeLine);
    if constexpr (std::is_invocable_v<Init, LogFunction, ProfilerFunction>) {
      return t->init(&TakeLine, &IgnoreEvent);
    }
    if constexpr (std::is_invocable_v<Init, void**, uint64_t, CommConfig*, LogFunction,
                                      ProfilerFunction>) {
      CommConfig config = {kUndefined};
      return t->init(context, 0x5eed, &config, &TakeLine, &IgnoreEvent);
    }
    return kInternalError;
  };
  listen = [t](void* context, int device, void* handle, void** comm) {
    if constexpr (std::is_invocable_v<decltype(t->listen), int, void*, void**>) {
      return t->listen(device, handle, comm);
    } else {
      return t->listen(context, device, handle, comm);
    }
  };
  connect = [t](void* context, int device, void* handle, void** comm) {
    using Connect = decltype(t->connect);
    DeviceHandle* offload = nullptr;
    CommConfig config = {kUndefined};
    if constexpr (std::is_invocable_v<Connect, int, void*, void**>) {
      return t->connect(device, handle, comm);
    } else if constexpr (std::is_invocable_v<Connect, int, void*, void**, DeviceHandle**>) {
      return t->connect(device, handle, comm, &offload);
    } else if constexpr (std::is_invocable_v<Connect, int, CommConfig*, void*, void**,
                                             DeviceHandle**>) {
      return t->connect(device, &config, handle, comm, &offload);
    } else {
      return t->connect(context, device, handle, comm, &offload);
    }
  };
  reg = [t](void* comm, void* data, size_t bytes, int type, void** memory) {
    return t->register_memory(comm, data, bytes, type, memory);
  };
  dereg = t->deregister;
  isend = [t](void* comm, void* data, size_t bytes, int tag, void* memory, void** request) {
    if constexpr (std::is_invocable_v<decltype(t->isend), void*, void*, size_t, int, void*,
                                      void**>) {
      return t->isend(comm, data, bytes, tag, memory, request);
    } else {
      return t->isend(comm, data, bytes, tag, memory, nullptr, request);
    }
  };
  irecv = [t](void* comm, int count, void** data, size_t* bytes, int* tags, void** memory,
              void** request) {
    using Receive = decltype(t->irecv);
    if constexpr (std::is_invocable_v<Receive, void*, int, void**, int*, int*, void**, void**>) {
      int narrow[kMaxGroup];
      std::copy_n(bytes, count, narrow);
      return t->irecv(comm, count, data, narrow, tags, memory, request);
    } else if constexpr (std::is_invocable_v<Receive, void*, int, void**, size_t*, int*, void**,
                                             void**>) {
      return t->irecv(comm, count, data, bytes, tags, memory, request);
    } else {
      void* profiled[kMaxGroup] = {};
      return t->irecv(comm, count, data, bytes, tags, memory, profiled, request);
    }
  };
  iflush = t->iflush;
  test = t->test;
  close_send = t->close_send;
  close_recv = t->close_recv;
  close_listen = t->close_listen;
}

namespace {

template <typename Members, typename Function>
Result CallMakeVirtual(Function make, int* device, const std::vector<int>& members) {
  Members own = {};
  own.count = static_cast<int>(members.size());
  std::copy(members.begin(), members.end(), own.devices);
  return make(device, &own);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NetPlugin>> NetPlugin::Open(const std::string& file, int version) {
  absl::StatusOr<void*> library = Load(file);
  if (!library.ok()) return library.status();
  for (int one = 12; version == 0 && one >= 6; --one) {
    if (Symbol(*library, one) != nullptr) version = one;
  }
  const void* const table = Symbol(*library, version);
  if (table == nullptr) {
    return absl::NotFoundError(absl::StrCat(file, " exports no ncclNetPlugin_v", version));
  }
  std::unique_ptr<NetPlugin> out(new NetPlugin());
  out->version_ = version;
  if (version == 6) out->Fill<TableV6, PropertiesV6>(static_cast<const TableV6*>(table));
  if (version == 7) out->Fill<TableV7, PropertiesV7>(static_cast<const TableV7*>(table));
  if (version == 8) out->Fill<TableV8, PropertiesV8>(static_cast<const TableV8*>(table));
  if (version == 9) {
    const auto* const t = static_cast<const TableV9*>(table);
    out->Fill<TableV9, PropertiesV9>(t);
    if (t->make_virtual_device != nullptr) {
      out->make_virtual = [t](int* device, const std::vector<int>& members) {
        return CallMakeVirtual<MemberDevices>(t->make_virtual_device, device, members);
      };
    }
  }
  if (version == 10) {
    const auto* const t = static_cast<const TableV10*>(table);
    out->Fill<TableV10, PropertiesV9>(t);
    if (t->make_virtual_device != nullptr) {
      out->make_virtual = [t](int* device, const std::vector<int>& members) {
        return CallMakeVirtual<MemberDevices>(t->make_virtual_device, device, members);
      };
    }
  }
  if (version == 11) {
    const auto* const t = static_cast<const TableV11*>(table);
    out->Fill<TableV11, PropertiesV11>(t);
    out->finalize = t->finalize;
    if (t->make_virtual_device != nullptr) {
      out->make_virtual = [t](int* device, const std::vector<int>& members) {
        return CallMakeVirtual<MemberDevices>(t->make_virtual_device, device, members);
      };
    }
  }
  if (version == 12) {
    const auto* const t = static_cast<const TableV12*>(table);
    out->Fill<TableV12, PropertiesV12>(t);
    out->finalize = t->finalize;
    if (t->make_virtual_device != nullptr) {
      out->make_virtual = [t](int* device, const std::vector<int>& members) {
        return CallMakeVirtual<MemberDevicesV12>(t->make_virtual_device, device, members);
      };
    }
  }
  return out;
}

}  // namespace tryst::nccl_net
