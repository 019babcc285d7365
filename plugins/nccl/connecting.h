#ifndef TRYST_PLUGINS_NCCL_CONNECTING_H_
#define TRYST_PLUGINS_NCCL_CONNECTING_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/nccl/control_socket.h"
#include "plugins/nccl/recv_comm.h"
#include "plugins/nccl/send_comm.h"
#include "plugins/nccl/wire.h"

namespace tryst::nccl {

// What a comm needs of a device.
struct CommDevice {
  std::string name;
  DeviceKind kind = DeviceKind::kSoft;
  std::vector<Rail*> rails;
  uint64_t max_bytes = 0;
  bool reaches_gpus = false;

  bool patient() const { return kind != DeviceKind::kIbv; }
};

// The connecting end until it becomes a comm. Used by one thread at a time; never blocks.
class Connecting {
 public:
  Connecting(Engine* engine, CommDevice device, const Handle& handle);
  // Returns a comm once both sides have proven every lane; null before.
  absl::StatusOr<std::unique_ptr<SendComm>> Step();

 private:
  enum class State : uint8_t {
    kNew,
    kOpening,  // Our lanes open.
    kWelcome,  // It waits for the peer's answer.
    kProving,  // An empty write is on its way through each lane, or its answer back.
  };

  absl::Status Start();
  absl::Status TakeWelcome(const std::string& bytes);
  absl::Status Explain(const absl::Status& why) const;

  Engine* const engine_;
  const CommDevice device_;
  const Handle handle_;
  State state_ = State::kNew;
  std::unique_ptr<ControlSocket> socket_;
  std::unique_ptr<SendComm> comm_;
};

// The accepting end until it becomes a comm.
class Accepting {
 public:
  Accepting(Engine* engine, const CommDevice& device, const Secret& secret, Fd socket);
  // As Connecting::Step(). kPermissionDenied: a stranger connected, which no comm need hear of.
  absl::StatusOr<std::unique_ptr<RecvComm>> Step();
  int64_t since_ns() const { return since_ns_; }
  bool greeted() const { return state_ != State::kHello; }

 private:
  enum class State : uint8_t {
    kHello,
    kOpening,
    kConnecting,
    kWelcoming,  // Our answer is being sent.
    kProving,
  };

  absl::Status TakeHello(const std::string& bytes);
  absl::Status Advance();
  absl::Status Refuse(const absl::Status& why);

  Engine* const engine_;
  const CommDevice device_;
  const Secret secret_;
  const int64_t since_ns_;
  State state_ = State::kHello;
  Hello hello_;
  ControlSocket socket_;
  std::unique_ptr<RecvComm> comm_;
};

// Listens for peers and accepts any number of them.
class Listening {
 public:
  static absl::StatusOr<std::unique_ptr<Listening>> Start(Engine* engine, CommDevice device,
                                                          const std::string& host, Handle* handle);
  // Returns the next comm, or null. Never blocks.
  absl::StatusOr<std::unique_ptr<RecvComm>> Accept();

 private:
  Listening(Engine* engine, CommDevice device) : engine_(engine), device_(std::move(device)) {}

  Engine* const engine_;
  const CommDevice device_;
  Secret secret_ = {};
  Fd listener_;
  std::list<Accepting> pending_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_CONNECTING_H_
