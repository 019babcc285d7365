#include "tests/frameworks/nccl_net/comm_pair.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst::nccl_net {
namespace {

constexpr uint8_t kRedByte = 0xcd;
constexpr uint8_t kClearByte = 0xee;

uint8_t PatternAt(uint32_t seed, size_t i) {
  return static_cast<uint8_t>((i * 2654435761u + seed * 40503u) >> 13);
}

}  // namespace

absl::Status Call(Result result, const std::string& what) {
  if (result == nccl::kSuccess) return absl::OkStatus();
  const std::vector<std::string> warnings = NetPlugin::Warnings();
  return absl::InternalError(absl::StrCat(what, " gave error ", static_cast<int>(result),
                                          warnings.empty() ? "" : ": " + warnings.back()));
}

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status Until(const std::string& what, const std::function<absl::StatusOr<bool>()>& step) {
  const int64_t end_ms = NowMs() + kPatienceS * 1000;
  for (;;) {
    const absl::StatusOr<bool> done = step();
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    if (NowMs() > end_ms) return absl::DeadlineExceededError(absl::StrCat(what, " does not end"));
    sched_yield();
  }
}

Opened::~Opened() {
  if (net != nullptr && net->finalize) net->finalize(context);
}

nccl::PropertiesV12 Opened::Properties() const {
  nccl::PropertiesV12 out = {};
  net->properties(device, &out);
  return out;
}

absl::StatusOr<std::unique_ptr<Opened>> OpenPlugin(const std::string& file, int version) {
  auto opened = std::make_unique<Opened>();
  absl::StatusOr<std::unique_ptr<NetPlugin>> net = NetPlugin::Open(file, version);
  if (!net.ok()) return net.status();
  const absl::Status init = Call((*net)->init(&opened->context), "init");
  if (!init.ok()) return init;
  opened->net = *std::move(net);
  int count = 0;
  const absl::Status devices = Call(opened->net->devices(&count), "devices");
  if (!devices.ok()) return devices;
  if (count <= 0) return absl::NotFoundError("the plugin has no device");
  return opened;
}

CommPair::CommPair(CommPair&& other) noexcept
    : net(other.net),
      listen(std::exchange(other.listen, nullptr)),
      send(std::exchange(other.send, nullptr)),
      recv(std::exchange(other.recv, nullptr)) {}

CommPair::~CommPair() {
  if (send != nullptr) net->close_send(send);
  if (recv != nullptr) net->close_recv(recv);
  if (listen != nullptr) net->close_listen(listen);
}

absl::Status ConnectTo(const Opened& opened, void* listen, const void* handle, int device,
                       CommPair::Order order, CommPair* pair) {
  pair->net = opened.net.get();
  char mine[nccl::kHandleBytes];
  memcpy(mine, handle, sizeof(mine));
  int rounds = 0;
  return Until("connecting", [&]() -> absl::StatusOr<bool> {
    ++rounds;
    // Runs some rounds on one side only, as if the other rank were late.
    const bool connects = order != CommPair::Order::kAcceptFirst || rounds > 50;
    const bool accepts = order != CommPair::Order::kConnectFirst || rounds > 50;
    if (connects && pair->send == nullptr) {
      NCCL_NET_TRY(Call(pair->net->connect(opened.context, device, mine, &pair->send), "connect"));
    }
    if (accepts && pair->recv == nullptr) {
      NCCL_NET_TRY(Call(pair->net->accept(listen, &pair->recv), "accept"));
    }
    return pair->send != nullptr && pair->recv != nullptr;
  });
}

absl::StatusOr<CommPair> MakePair(const Opened& opened, CommPair::Order order, int device) {
  if (device < 0) device = opened.device;
  CommPair pair;
  pair.net = opened.net.get();
  char handle[nccl::kHandleBytes] = {};
  NCCL_NET_TRY(Call(pair.net->listen(opened.context, device, handle, &pair.listen), "listen"));
  if (pair.listen == nullptr) return absl::InternalError("listen gave no comm");
  NCCL_NET_TRY(ConnectTo(opened, pair.listen, handle, device, order, &pair));
  return pair;
}

absl::StatusOr<Memory> Memory::Make(NetPlugin* net, void* comm, size_t bytes) {
  Memory memory;
  memory.net_ = net;
  memory.comm_ = comm;
  memory.bytes_ = bytes;
  memory.storage_.reset(new uint8_t[bytes + 2 * kRed]);
  memset(memory.storage_.get(), kRedByte, bytes + 2 * kRed);
  memory.Clear();
  NCCL_NET_TRY(Call(net->reg(comm, memory.data(), std::max<size_t>(bytes, 1), nccl::kPointerHost,
                             &memory.handle_),
                    "regMr"));
  return memory;
}

Memory::~Memory() {
  if (storage_ != nullptr) net_->dereg(comm_, handle_);
}

void Memory::Fill(uint32_t seed) {
  for (size_t i = 0; i < bytes_; ++i) data()[i] = PatternAt(seed, i);
}

void Memory::Clear() { memset(data(), kClearByte, bytes_); }

absl::Status Memory::Check(uint32_t seed, size_t bytes) const {
  for (size_t i = 0; i < bytes_ + 2 * kRed; ++i) {
    const bool red = i < kRed || i >= kRed + bytes_;
    const uint8_t want = red ? kRedByte : i - kRed < bytes ? PatternAt(seed, i - kRed) : kClearByte;
    if (storage_[i] == want) continue;
    return absl::DataLossError(absl::StrCat(
        red ? "a byte outside of the receive is written: " : "a wrong byte: ",
        static_cast<int64_t>(i) - static_cast<int64_t>(kRed), " of ", bytes, " in ", bytes_));
  }
  return absl::OkStatus();
}

absl::Status TrySend(const CommPair& pair, const Memory& from, size_t bytes, int tag,
                     Operation* out) {
  return Call(pair.net->isend(pair.send, from.data(), bytes, tag, from.handle(), &out->request),
              "isend");
}

absl::Status TryReceive(const CommPair& pair, const Memory& into, size_t bytes, int tag,
                        Operation* out) {
  void* data = into.data();
  void* memory = into.handle();
  return Call(pair.net->irecv(pair.recv, 1, &data, &bytes, &tag, &memory, &out->request), "irecv");
}

absl::Status TestOne(const CommPair& pair, Operation* operation) {
  if (operation->request == nullptr || operation->done) return absl::OkStatus();
  int done = 0;
  NCCL_NET_TRY(Call(pair.net->test(operation->request, &done, operation->sizes), "test"));
  operation->done = done != 0;
  return absl::OkStatus();
}

absl::Status Finish(const CommPair& pair, const std::vector<Operation*>& operations) {
  return Until("a request", [&]() -> absl::StatusOr<bool> {
    bool all = true;
    for (Operation* operation : operations) {
      NCCL_NET_TRY(TestOne(pair, operation));
      all = all && operation->done;
    }
    return all;
  });
}

absl::Status Transfer(const CommPair& pair, size_t bytes, size_t room, uint32_t seed) {
  absl::StatusOr<Memory> from = Memory::Make(pair.net, pair.send, bytes);
  if (!from.ok()) return from.status();
  absl::StatusOr<Memory> into = Memory::Make(pair.net, pair.recv, room);
  if (!into.ok()) return into.status();
  from->Fill(seed);
  Operation send;
  Operation receive;
  NCCL_NET_TRY(Until("a transfer", [&]() -> absl::StatusOr<bool> {
    if (receive.request == nullptr) NCCL_NET_TRY(TryReceive(pair, *into, room, 7, &receive));
    if (send.request == nullptr) NCCL_NET_TRY(TrySend(pair, *from, bytes, 7, &send));
    NCCL_NET_TRY(TestOne(pair, &send));
    NCCL_NET_TRY(TestOne(pair, &receive));
    return send.done && receive.done;
  }));
  if (receive.sizes[0] != static_cast<int>(bytes)) {
    return absl::DataLossError(
        absl::StrCat("test says ", receive.sizes[0], " bytes of a message of ", bytes));
  }
  return into->Check(seed, bytes);
}

}  // namespace tryst::nccl_net
