#include "plugins/nccl/plugin.h"

#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/nccl/logger.h"

namespace tryst::nccl {
namespace {

constexpr int kMaxComms = 1 << 16;

int Processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

PeerName Self() {
  PeerName self;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  self.host = host;
  self.pid = static_cast<uint32_t>(getpid());
  (void)!getrandom(&self.process, sizeof(self.process), 0);
  return self;
}

// A comm over the software NIC needs about ten descriptors.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result ReportNoDevice(int device) {
  return Report(absl::InvalidArgumentError(
      absl::StrCat("NCCL asks for a device that this plugin does not have: ", device)));
}

}  // namespace

Plugin& Plugin::Get() {
  static Plugin* const plugin = new Plugin();
  return *plugin;
}

absl::Status Plugin::StartThreads(const Settings& settings, DeviceKind kind) {
  absl::StatusOr<std::unique_ptr<PeerWatch>> watch =
      PeerWatch::Start(settings.peer_timeout_ms, &engine_.clock);
  if (!watch.ok()) return watch.status();
  engine_.watch = *std::move(watch);
  for (int i = 0; kind != DeviceKind::kIbv && i < settings.threads; ++i) {
    absl::StatusOr<std::unique_ptr<Worker>> worker =
        Worker::Start(settings.spin_us, &engine_.clock);
    if (!worker.ok()) return worker.status();
    engine_.workers.push_back(*std::move(worker));
  }
  return absl::OkStatus();
}

absl::Status Plugin::Open() {
  if (open_) return absl::OkStatus();
  absl::StatusOr<Settings> settings = ParseSettings(Environment(), Processors());
  if (!settings.ok()) return settings.status();
  absl::StatusOr<DeviceSearch> search = FindDevices(*settings);
  if (!search.ok()) return search.status();
  const absl::Status started = StartThreads(*settings, search->found[0]->kind);
  if (!started.ok()) {
    engine_.workers.clear();
    engine_.watch.reset();
    return started;
  }
  search_ = *std::move(search);
  for (size_t i = 0; i < search_.found.size(); ++i) {
    devices_.push_back(std::make_unique<Device>());
    devices_.back()->name = search_.found[i]->name;
    devices_.back()->members = {static_cast<int>(i)};
  }
  RaiseDescriptorLimit();
  engine_.settings = *std::move(settings);
  engine_.self = Self();
  open_ = true;
  for (const std::string& line : search_.explanation) LogDecision(line);
  return absl::OkStatus();
}

Result Plugin::Init(void** context, int traffic_class, LogFunction log) {
  SetLogger(log);
  MutexLock lock(&mu_);
  const absl::Status opened = Open();
  if (!opened.ok()) {
    // NCCL will try its next network, so this is not the user's error.
    LogDecision(std::string(opened.message()));
    return ResultOf(opened);
  }
  if (context == nullptr) return kSuccess;
  auto made = std::make_unique<Context>();
  made->traffic_class = traffic_class;
  *context = made.get();
  contexts_.insert(made.release());
  return kSuccess;
}

Result Plugin::Finalize(void* context) {
  MutexLock lock(&mu_);
  if (contexts_.erase(static_cast<Context*>(context)) == 0) {
    return Report(absl::InvalidArgumentError("NCCL closes a context that is not open"));
  }
  delete static_cast<Context*>(context);
  return kSuccess;
}

Result Plugin::Devices(int* count) {
  MutexLock lock(&mu_);
  *count = static_cast<int>(devices_.size());
  return kSuccess;
}

Result Plugin::Properties(int device, PropertiesV12* out) {
  MutexLock lock(&mu_);
  if (device < 0 || static_cast<size_t>(device) >= devices_.size()) return ReportNoDevice(device);
  const Device& asked = *devices_[static_cast<size_t>(device)];
  PhysicalDevice* const first = search_.found[static_cast<size_t>(asked.members[0])].get();
  *out = PropertiesV12();
  // NCCL does not write to these texts.
  out->name = const_cast<char*>(asked.name.c_str());
  out->pci_path = first->pci_path.empty() ? nullptr : const_cast<char*>(first->pci_path.c_str());
  out->guid = first->guid;
  out->port = first->port;
  out->pointer_support = kPointerHost | kPointerCuda | kPointerDmaBuf;
  out->max_p2p_bytes = first->max_message_bytes;
  for (const int member : asked.members) {
    const PhysicalDevice& one = *search_.found[static_cast<size_t>(member)];
    out->pointer_support &= one.pointer_support;
    out->speed_mbps += one.speed_mbps;
    out->max_p2p_bytes = std::min<size_t>(out->max_p2p_bytes, one.max_message_bytes);
    out->members.devices[out->members.count++] = member;
  }
  out->max_collective_bytes = out->max_p2p_bytes;
  out->registration_is_global = 1;
  out->max_comms = kMaxComms;
  out->max_receives = kMaxGroup;
  out->max_multi_request = 1;
  out->rail = out->plane = kUndefined;
  return kSuccess;
}

Result Plugin::MakeVirtual(const int* members, int count, int* device) {
  MutexLock lock(&mu_);
  if (count < 1 || count > kMaxRails) {
    return Report(absl::InvalidArgumentError(absl::StrCat(
        "NCCL asks for a device of ", count, " NICs, and 1 to ", kMaxRails, " can be fused")));
  }
  auto made = std::make_unique<Device>();
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    if (members[i] < 0 || static_cast<size_t>(members[i]) >= search_.found.size()) {
      return ReportNoDevice(members[i]);
    }
    if (std::count(made->members.begin(), made->members.end(), members[i]) > 0) {
      return Report(absl::InvalidArgumentError(
          "NCCL asks to fuse NICs into one device, and names one of them twice"));
    }
    made->members.push_back(members[i]);
    names.push_back(search_.found[static_cast<size_t>(members[i])]->name);
  }
  made->name = absl::StrJoin(names, "+");
  *device = static_cast<int>(devices_.size());
  LogDecision(absl::StrCat("device ", *device, " is ", made->name));
  devices_.push_back(std::move(made));
  return kSuccess;
}

absl::StatusOr<CommDevice> Plugin::OpenDevice(int device, int traffic_class) {
  if (device < 0 || static_cast<size_t>(device) >= devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL asks for a device that this plugin does not have: ", device));
  }
  const Device& asked = *devices_[static_cast<size_t>(device)];
  CommDevice out;
  out.name = asked.name;
  int pointer_support = kPointerCuda | kPointerDmaBuf;
  for (const int member : asked.members) {
    PhysicalDevice& one = *search_.found[static_cast<size_t>(member)];
    absl::StatusOr<Rail*> rail = one.Open(traffic_class);
    if (!rail.ok()) return rail.status();
    out.rails.push_back(*rail);
    out.kind = one.kind;
    pointer_support &= one.pointer_support;
    out.max_bytes =
        out.max_bytes == 0 ? one.max_message_bytes : std::min(out.max_bytes, one.max_message_bytes);
  }
  out.reaches_gpus = pointer_support != 0;
  return out;
}

absl::StatusOr<std::string> Plugin::HostOf(int device) {
  const Device& asked = *devices_[static_cast<size_t>(device)];
  return search_.found[static_cast<size_t>(asked.members[0])]->control_host;
}

Result Plugin::Listen(void* context, int device, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  const int traffic_class =
      context != nullptr ? static_cast<Context*>(context)->traffic_class : kUndefined;
  MutexLock lock(&mu_);
  absl::StatusOr<CommDevice> opened = OpenDevice(device, traffic_class);
  if (!opened.ok()) return Report(opened.status());
  absl::StatusOr<std::string> host = HostOf(device);
  Handle made;
  absl::StatusOr<std::unique_ptr<Listening>> listening =
      Listening::Start(&engine_, *std::move(opened), *host, &made);
  if (!listening.ok()) return Report(listening.status());
  memset(handle, 0, kHandleBytes);
  memcpy(handle, &made, sizeof(made));
  *listen_comm = listening->release();
  return kSuccess;
}

// The caller keeps the handle between calls, and a number in it names what has begun.
Result Plugin::Connect(void* context, int device, int traffic_class, void* handle,
                       void** send_comm) {
  *send_comm = nullptr;
  if (context != nullptr) traffic_class = static_cast<Context*>(context)->traffic_class;
  Handle mine;
  memcpy(&mine, handle, sizeof(mine));
  std::unique_ptr<Connecting> connecting;
  {
    MutexLock lock(&mu_);
    const auto begun = connecting_.find(mine.connecting);
    if (begun != connecting_.end()) {
      connecting = std::move(begun->second);
      connecting_.erase(begun);
    } else {
      absl::StatusOr<CommDevice> opened = OpenDevice(device, traffic_class);
      if (!opened.ok()) return Report(opened.status());
      connecting = std::make_unique<Connecting>(&engine_, *std::move(opened), mine);
      mine.connecting = next_connecting_++;
    }
  }
  absl::StatusOr<std::unique_ptr<SendComm>> comm = connecting->Step();
  if (!comm.ok()) return Report(comm.status());
  if (*comm != nullptr) {
    mine.connecting = 0;
    *send_comm = static_cast<Comm*>(comm->release());
  } else {
    MutexLock lock(&mu_);
    connecting_[mine.connecting] = std::move(connecting);
  }
  memcpy(handle, &mine, sizeof(mine));
  return kSuccess;
}

Result Plugin::Accept(void* listen_comm, void** recv_comm) {
  *recv_comm = nullptr;
  absl::StatusOr<std::unique_ptr<RecvComm>> comm = static_cast<Listening*>(listen_comm)->Accept();
  if (!comm.ok()) return Report(comm.status());
  if (*comm != nullptr) *recv_comm = static_cast<Comm*>(comm->release());
  return kSuccess;
}

Result Plugin::Close(void* comm) {
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

Result Plugin::CloseListen(void* listen_comm) {
  delete static_cast<Listening*>(listen_comm);
  return kSuccess;
}

Result Plugin::Register(void* comm, void* data, uint64_t bytes, int type, void** memory) {
  *memory = nullptr;
  auto* const on = static_cast<Comm*>(comm);
  if (type != kPointerHost && type != kPointerCuda) {
    return Report(absl::InvalidArgumentError(
        absl::StrCat("NCCL registers memory of an unknown type: ", type)));
  }
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> made =
      RegisteredMemory::Register(on->rails(), data, bytes, type == kPointerCuda);
  if (!made.ok()) {
    return Report(absl::Status(made.status().code(),
                               absl::StrCat(on->device_name(), " cannot register ", bytes,
                                            " bytes: ", made.status().message())));
  }
  *memory = made->release();
  return kSuccess;
}

Result Plugin::RegisterDmaBuf(void* comm, void* data, uint64_t bytes, int, uint64_t offset, int fd,
                              void** memory) {
  *memory = nullptr;
  auto* const on = static_cast<Comm*>(comm);
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> made =
      RegisteredMemory::RegisterDmaBuf(on->rails(), data, bytes, offset, fd);
  if (!made.ok()) {
    return Report(absl::Status(made.status().code(),
                               absl::StrCat(on->device_name(), " cannot register a dma-buf of ",
                                            bytes, " bytes: ", made.status().message())));
  }
  *memory = made->release();
  return kSuccess;
}

Result Plugin::Deregister(void* memory) {
  delete static_cast<RegisteredMemory*>(memory);
  return kSuccess;
}

Result Plugin::Send(void* comm, const void* data, uint64_t bytes, int tag, void* memory,
                    void** request) {
  Request* made = nullptr;
  const Result result = static_cast<SendComm*>(static_cast<Comm*>(comm))
                            ->Send(data, bytes, tag, static_cast<RegisteredMemory*>(memory), &made);
  *request = made;
  return result;
}

Result Plugin::Receive(void* comm, int count, void** data, const uint64_t* bytes, const int* tags,
                       void** memory, void** request) {
  if (count < 1 || count > kMaxGroup) {
    return Report(absl::InvalidArgumentError(absl::StrCat(
        "NCCL asks for a group of ", count, " receives, and 1 to ", kMaxGroup, " are possible")));
  }
  Request* made = nullptr;
  const Result result =
      static_cast<RecvComm*>(static_cast<Comm*>(comm))
          ->Receive(count, data, bytes, tags, reinterpret_cast<RegisteredMemory**>(memory), &made);
  *request = made;
  return result;
}

Result Plugin::Flush(void* comm, int count, void** data, const int* bytes, void** memory,
                     void** request) {
  Request* made = nullptr;
  const Result result =
      static_cast<RecvComm*>(static_cast<Comm*>(comm))
          ->Flush(count, data, bytes, reinterpret_cast<RegisteredMemory**>(memory), &made);
  *request = made;
  return result;
}

Result Plugin::Test(void* request, int* done, int* sizes) {
  auto* const mine = static_cast<Request*>(request);
  return mine->comm->Test(mine, done, sizes);
}

}  // namespace tryst::nccl
