#ifndef TRYST_TESTS_FRAMEWORKS_NCCL_NET_COMM_PAIR_H_
#define TRYST_TESTS_FRAMEWORKS_NCCL_NET_COMM_PAIR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/frameworks/nccl_net/net_plugin.h"

namespace tryst::nccl_net {

inline constexpr int kPatienceS = 20;  // After so long something counts as hung.

// `what` failed with `result`.
absl::Status Call(Result result, const std::string& what);
#define NCCL_NET_TRY(expression)                               \
  do {                                                         \
    const absl::Status nccl_net_try_status = (expression);     \
    if (!nccl_net_try_status.ok()) return nccl_net_try_status; \
  } while (false)

int64_t NowMs();
// Calls `step` until it returns true. kDeadlineExceeded, with `what`: it never did.
absl::Status Until(const std::string& what, const std::function<absl::StatusOr<bool>()>& step);

// An initialized plugin, which is closed at the end.
struct Opened {
  std::unique_ptr<NetPlugin> net;
  void* context = nullptr;
  int device = 0;
  ~Opened();
  nccl::PropertiesV12 Properties() const;
};
absl::StatusOr<std::unique_ptr<Opened>> OpenPlugin(const std::string& file, int version);

// Both ends of one connection in one process, as two ranks of a process have them.
struct CommPair {
  enum class Order { kConnectFirst, kAcceptFirst, kInTurn };

  NetPlugin* net = nullptr;
  void* listen = nullptr;
  void* send = nullptr;
  void* recv = nullptr;
  CommPair() = default;
  CommPair(const CommPair&) = delete;
  CommPair(CommPair&& other) noexcept;
  ~CommPair();
};
// With `listen`, uses that open listener and its handle, and does not close it.
absl::StatusOr<CommPair> MakePair(const Opened& opened, CommPair::Order order, int device = -1);
absl::Status ConnectTo(const Opened& opened, void* listen, const void* handle, int device,
                       CommPair::Order order, CommPair* pair);

// Registered host memory with a red zone at each end.
class Memory {
 public:
  static absl::StatusOr<Memory> Make(NetPlugin* net, void* comm, size_t bytes);
  Memory(Memory&&) = default;
  ~Memory();
  uint8_t* data() const { return storage_.get() + kRed; }
  size_t bytes() const { return bytes_; }
  void* handle() const { return handle_; }
  void Fill(uint32_t seed);
  // The first `bytes` must be those of Fill(seed), the rest as Clear() left it.
  absl::Status Check(uint32_t seed, size_t bytes) const;
  void Clear();

 private:
  static constexpr size_t kRed = 256;
  Memory() = default;
  NetPlugin* net_ = nullptr;
  void* comm_ = nullptr;
  void* handle_ = nullptr;
  size_t bytes_ = 0;
  std::unique_ptr<uint8_t[]> storage_;
};

// One operation: tried until it begins, then tested until it ends.
struct Operation {
  void* request = nullptr;
  bool done = false;
  int sizes[nccl::kMaxGroup] = {};
};
absl::Status TrySend(const CommPair& pair, const Memory& from, size_t bytes, int tag,
                     Operation* out);
absl::Status TryReceive(const CommPair& pair, const Memory& into, size_t bytes, int tag,
                        Operation* out);
absl::Status TestOne(const CommPair& pair, Operation* operation);
// Calls test() on the operations in turn until all are done.
absl::Status Finish(const CommPair& pair, const std::vector<Operation*>& operations);

// Sends `bytes` into a receive of `room` bytes, and checks every byte and both sizes.
absl::Status Transfer(const CommPair& pair, size_t bytes, size_t room, uint32_t seed);

}  // namespace tryst::nccl_net

#endif  // TRYST_TESTS_FRAMEWORKS_NCCL_NET_COMM_PAIR_H_
