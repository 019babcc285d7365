// A net plugin that shares no code with ours: one TCP socket for each comm, messages in order, one
// receive at a time. It shows that the suite can pass. With PLAIN_TCP_FAULT it shows that each of
// these faults is found:
//   tail    the last byte of a large message is wrong
//   size    test() returns the size that was asked for, not the one that came
//   deaf    the end of the peer is not noticed
//   blocks  accept() waits for its peer
//   early   a send ends before its bytes have left
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>

#include "plugins/nccl/abi.h"

namespace {

using tryst::nccl::DeviceHandle;
using tryst::nccl::kInternalError;
using tryst::nccl::kInvalidArgument;
using tryst::nccl::kMaxRequests;
using tryst::nccl::kRemoteError;
using tryst::nccl::kSuccess;
using tryst::nccl::kSystemError;
using tryst::nccl::LogFunction;
using tryst::nccl::PropertiesV8;
using tryst::nccl::Result;
using tryst::nccl::TableV8;

bool Fault(const char* name) {
  const char* const wanted = getenv("PLAIN_TCP_FAULT");
  return wanted != nullptr && std::string(wanted) == name;
}

struct Comm;
struct Request {
  Comm* comm = nullptr;
  char* data = nullptr;
  uint64_t room = 0;
  uint64_t bytes = 0;  // For a receive: known once the header has arrived.
  uint64_t moved = 0;  // Counts header and payload.
  bool done = false;
};

struct Comm {
  int fd = -1;
  bool sends = false;
  bool failed = false;
  std::deque<std::unique_ptr<Request>> requests;
};

struct Handle {
  sockaddr_in address;
  int32_t fd;  // The connector's descriptor plus one, once it has begun.
};

// Moves as much as it can of `length` bytes. False: the connection has ended.
bool Move(Comm* comm, char* bytes, uint64_t length, uint64_t* moved) {
  while (*moved < length) {
    const ssize_t some =
        comm->sends ? send(comm->fd, bytes + *moved, length - *moved, MSG_DONTWAIT | MSG_NOSIGNAL)
                    : recv(comm->fd, bytes + *moved, length - *moved, MSG_DONTWAIT);
    if (some < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (some <= 0) return Fault("deaf");
    *moved += static_cast<uint64_t>(some);
  }
  return true;
}

bool Step(Request* request) {
  Comm* const comm = request->comm;
  uint64_t& bytes = request->bytes;
  if (request->moved < sizeof(bytes)) {
    if (!Move(comm, reinterpret_cast<char*>(&bytes), sizeof(bytes), &request->moved)) return false;
    if (request->moved < sizeof(bytes)) return true;
    if (!comm->sends && bytes > request->room) return false;
  }
  uint64_t payload = request->moved - sizeof(bytes);
  if (!Move(comm, request->data, bytes, &payload)) return false;
  request->moved = sizeof(bytes) + payload;
  request->done = payload == bytes;
  if (request->done && !comm->sends && bytes > 100'000 && Fault("tail")) {
    request->data[bytes - 1] ^= 1;
  }
  return true;
}

// Moves the first request that is not done, and those after it.
void Progress(Comm* comm) {
  for (const std::unique_ptr<Request>& request : comm->requests) {
    if (request->done) continue;
    if (!Step(request.get())) comm->failed = true;
    if (!request->done) return;
  }
}

// A sender notices a dead receiver by reading.
bool PeerEnded(const Comm& comm) {
  char byte;
  return comm.sends && !Fault("deaf") && recv(comm.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

Result Init(LogFunction) { return kSuccess; }
Result Devices(int* count) {
  *count = 1;
  return kSuccess;
}
Result GetProperties(int device, PropertiesV8* out) {
  static char name[] = "lo";
  if (device != 0) return kInvalidArgument;
  *out = PropertiesV8();
  out->name = name;
  out->pointer_support = tryst::nccl::kPointerHost;
  out->registration_is_global = 1;
  out->speed_mbps = 10000;
  out->max_comms = 1 << 16;
  out->max_receives = 1;
  return kSuccess;
}

Comm* NewComm(int fd, bool sends) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  auto* const comm = new Comm();
  comm->fd = fd;
  comm->sends = sends;
  return comm;
}

Result Listen(int, void* handle, void** out) {
  Handle mine = {};
  mine.address.sin_family = AF_INET;
  mine.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(mine.address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bind(fd, reinterpret_cast<sockaddr*>(&mine.address), length) != 0 || listen(fd, 128) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&mine.address), &length) != 0) {
    return kSystemError;
  }
  memcpy(handle, &mine, sizeof(mine));
  *out = NewComm(fd, false);
  return kSuccess;
}

Result Connect(int, void* handle, void** out, DeviceHandle**) {
  Handle mine;
  memcpy(&mine, handle, sizeof(mine));
  *out = nullptr;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int code =
      connect(fd, reinterpret_cast<const sockaddr*>(&mine.address), sizeof(mine.address));
  if (code != 0 && errno != EINPROGRESS) {
    close(fd);
    return kRemoteError;
  }
  *out = NewComm(fd, true);
  return kSuccess;
}

Result Accept(void* listen_comm, void** out, DeviceHandle**) {
  *out = nullptr;
  int fd = -1;
  do {
    fd = accept4(static_cast<Comm*>(listen_comm)->fd, nullptr, nullptr,
                 SOCK_CLOEXEC | SOCK_NONBLOCK);
  } while (fd < 0 && Fault("blocks"));
  if (fd >= 0) *out = NewComm(fd, false);
  return kSuccess;
}

Result Register(void*, void*, size_t, int, void** memory) {
  *memory = nullptr;
  return kSuccess;
}
Result Deregister(void*, void*) { return kSuccess; }

Result Begin(Comm* comm, void* data, uint64_t bytes, void** out) {
  *out = nullptr;
  if (comm->failed) return kRemoteError;
  if (comm->requests.size() >= kMaxRequests) return kSuccess;
  auto request = std::make_unique<Request>();
  request->comm = comm;
  request->data = static_cast<char*>(data);
  request->room = bytes;
  request->bytes = comm->sends ? bytes : 0;
  *out = request.get();
  comm->requests.push_back(std::move(request));
  return kSuccess;
}
Result Send(void* comm, void* data, int bytes, int, void*, void** request) {
  return Begin(static_cast<Comm*>(comm), data, static_cast<uint64_t>(bytes), request);
}
Result Receive(void* comm, int count, void** data, int* bytes, int*, void**, void** request) {
  if (count != 1) return kInternalError;
  return Begin(static_cast<Comm*>(comm), data[0], static_cast<uint64_t>(bytes[0]), request);
}
Result Flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return kSuccess;
}

Result Test(void* handle, int* done, int* sizes) {
  auto* const request = static_cast<Request*>(handle);
  Comm* const comm = request->comm;
  *done = 0;
  Progress(comm);
  if (!request->done && (comm->failed || PeerEnded(*comm))) return kRemoteError;
  if (!request->done && !(comm->sends && Fault("early"))) return kSuccess;
  *done = 1;
  if (sizes != nullptr) sizes[0] = static_cast<int>(Fault("size") ? request->room : request->bytes);
  if (!request->done) return kSuccess;
  for (auto it = comm->requests.begin(); it != comm->requests.end(); ++it) {
    if (it->get() != request) continue;
    comm->requests.erase(it);
    break;
  }
  return kSuccess;
}

Result Close(void* comm) {
  close(static_cast<Comm*>(comm)->fd);
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TableV8 ncclNetPlugin_v8 = {
    "PlainTcp", &Init,   &Devices,    &GetProperties, &Listen,  &Connect, &Accept,
    &Register,  nullptr, &Deregister, &Send,          &Receive, &Flush,   &Test,
    &Close,     &Close,  &Close,      nullptr,        nullptr};
