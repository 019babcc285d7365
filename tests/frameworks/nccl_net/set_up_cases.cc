// Tables, devices, connecting, closing, registering.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/frameworks/nccl_net/cases.h"
#include "tests/frameworks/nccl_net/comm_pair.h"

namespace tryst::nccl_net {
namespace {

using Order = CommPair::Order;

absl::StatusOr<std::unique_ptr<Opened>> Open(const Target& target) {
  return OpenPlugin(target.file, target.version);
}

#define NCCL_NET_OPEN(opened, target)                                 \
  absl::StatusOr<std::unique_ptr<Opened>> opened##_or = Open(target); \
  if (!opened##_or.ok()) return opened##_or.status();                 \
  Opened& opened = **opened##_or

#define NCCL_NET_PAIR(pair, opened, order)                      \
  absl::StatusOr<CommPair> pair##_or = MakePair(opened, order); \
  if (!pair##_or.ok()) return pair##_or.status();               \
  CommPair& pair = *pair##_or

absl::Status Tables(const Target& target) {
  absl::StatusOr<std::vector<int>> versions = NetPlugin::Versions(target.file);
  if (!versions.ok()) return versions.status();
  if (versions->empty()) return absl::NotFoundError("no ncclNetPlugin_v6 to _v12 is exported");
  for (const int version : *versions) {
    absl::StatusOr<std::unique_ptr<NetPlugin>> net = NetPlugin::Open(target.file, version);
    if (!net.ok()) return net.status();
    if ((*net)->name().empty()) return absl::InternalError("a table without a name");
  }
  return absl::OkStatus();
}

// One implementation serves all tables, but each table must carry bytes.
absl::Status EachVersion(const Target& target) {
  absl::StatusOr<std::vector<int>> versions = NetPlugin::Versions(target.file);
  if (!versions.ok()) return versions.status();
  for (const int version : *versions) {
    Target one = target;
    one.version = version;
    NCCL_NET_OPEN(opened, one);
    NCCL_NET_PAIR(pair, opened, Order::kInTurn);
    const absl::Status moved = Transfer(pair, 100'000, 100'000, 3);
    if (!moved.ok()) {
      return absl::InternalError(absl::StrCat("version ", version, ": ", moved.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Properties(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  int count = 0;
  NCCL_NET_TRY(Call(opened.net->devices(&count), "devices"));
  for (int device = 0; device < count; ++device) {
    nccl::PropertiesV12 out = {};
    NCCL_NET_TRY(Call(opened.net->properties(device, &out), "getProperties"));
    if (out.name == nullptr || out.speed_mbps <= 0 || out.max_comms <= 0 || out.max_receives < 1 ||
        out.max_receives > nccl::kMaxGroup || (out.pointer_support & nccl::kPointerHost) == 0) {
      return absl::InternalError(absl::StrCat("device ", device, " has senseless properties"));
    }
  }
  nccl::PropertiesV12 out = {};
  if (opened.net->properties(count + 1000, &out) == nccl::kSuccess) {
    return absl::UnimplementedError("properties of a device that is not there are given, too");
  }
  return absl::OkStatus();
}

absl::Status ConnectIn(const Target& target, Order order) {
  NCCL_NET_OPEN(opened, target);
  NCCL_NET_PAIR(pair, opened, order);
  return Transfer(pair, 5000, 5000, 1);
}
absl::Status ConnectFirst(const Target& target) { return ConnectIn(target, Order::kConnectFirst); }
absl::Status AcceptFirst(const Target& target) { return ConnectIn(target, Order::kAcceptFirst); }
absl::Status InTurn(const Target& target) { return ConnectIn(target, Order::kInTurn); }

// Neither side may wait inside a call for the other.
absl::Status NeverBlocks(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  char handle[nccl::kHandleBytes] = {};
  void* listen = nullptr;
  void* send = nullptr;
  void* recv = nullptr;
  const int64_t begin_ms = NowMs();
  NCCL_NET_TRY(Call(opened.net->listen(opened.context, 0, handle, &listen), "listen"));
  for (int i = 0; i < 20; ++i) {
    NCCL_NET_TRY(Call(opened.net->accept(listen, &recv), "accept"));
    if (recv != nullptr) return absl::InternalError("accept found a peer where there is none");
  }
  for (int i = 0; i < 20 && send == nullptr; ++i) {
    NCCL_NET_TRY(Call(opened.net->connect(opened.context, 0, handle, &send), "connect"));
  }
  if (NowMs() - begin_ms > 5000) return absl::DeadlineExceededError("connect or accept blocks");
  CommPair pair;
  pair.net = opened.net.get();
  pair.listen = listen;
  pair.send = send;
  return Until("connecting", [&]() -> absl::StatusOr<bool> {
    if (pair.send == nullptr) {
      NCCL_NET_TRY(Call(pair.net->connect(opened.context, 0, handle, &pair.send), "connect"));
    }
    if (pair.recv == nullptr) NCCL_NET_TRY(Call(pair.net->accept(listen, &pair.recv), "accept"));
    return pair.send != nullptr && pair.recv != nullptr;
  });
}

absl::Status ReuseListen(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  char handle[nccl::kHandleBytes] = {};
  void* listen = nullptr;
  NCCL_NET_TRY(Call(opened.net->listen(opened.context, 0, handle, &listen), "listen"));
  std::vector<CommPair> pairs(4);
  for (CommPair& pair : pairs) {
    NCCL_NET_TRY(ConnectTo(opened, listen, handle, 0, Order::kInTurn, &pair));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    NCCL_NET_TRY(Transfer(pairs[i], 3000 + i, 4000, static_cast<uint32_t>(i)));
  }
  NCCL_NET_TRY(Call(opened.net->close_listen(listen), "closeListen"));
  return Transfer(pairs[0], 70'000, 70'000, 9);  // Open connections stay open.
}

absl::Status CloseIn(const Target& target, const std::string& order) {
  NCCL_NET_OPEN(opened, target);
  for (int round = 0; round < 3; ++round) {
    NCCL_NET_PAIR(pair, opened, Order::kInTurn);
    NCCL_NET_TRY(Transfer(pair, 200'000, 200'000, 4));
    for (const char who : order) {
      if (who == 's') NCCL_NET_TRY(Call(pair.net->close_send(pair.send), "closeSend"));
      if (who == 's') pair.send = nullptr;
      if (who == 'r') NCCL_NET_TRY(Call(pair.net->close_recv(pair.recv), "closeRecv"));
      if (who == 'r') pair.recv = nullptr;
      if (who == 'l') NCCL_NET_TRY(Call(pair.net->close_listen(pair.listen), "closeListen"));
      if (who == 'l') pair.listen = nullptr;
    }
  }
  return absl::OkStatus();
}

absl::Status CloseOrders(const Target& target) {
  for (const char* order : {"srl", "rsl", "lsr", "lrs", "slr", "rls"}) {
    const absl::Status closed = CloseIn(target, order);
    if (!closed.ok()) return absl::InternalError(absl::StrCat(order, ": ", closed.message()));
  }
  return absl::OkStatus();
}

absl::Status InFlightClose(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  for (int round = 0; round < 4; ++round) {
    NCCL_NET_PAIR(pair, opened, Order::kInTurn);
    std::vector<Memory> memory;
    for (int i = 0; i < 8; ++i) {
      absl::StatusOr<Memory> one =
          Memory::Make(pair.net, i % 2 == 0 ? pair.recv : pair.send, 1 << 20);
      if (!one.ok()) return one.status();
      memory.push_back(*std::move(one));
      Operation begun;
      if (i % 2 == 0) {
        NCCL_NET_TRY(TryReceive(pair, memory.back(), memory.back().bytes(), i, &begun));
      } else if (round % 2 == 0) {
        NCCL_NET_TRY(TrySend(pair, memory.back(), memory.back().bytes(), i - 1, &begun));
      }
    }
    // In the order of an abort: first the registrations go, then the comms.
    memory.clear();
    if (round < 2) {
      NCCL_NET_TRY(Call(pair.net->close_recv(std::exchange(pair.recv, nullptr)), "closeRecv"));
    } else {
      NCCL_NET_TRY(Call(pair.net->close_send(std::exchange(pair.send, nullptr)), "closeSend"));
    }
  }
  NCCL_NET_PAIR(pair, opened, Order::kInTurn);
  return Transfer(pair, 300'000, 300'000, 5);
}

// While this object lives, the process can open no more than `spare` descriptors.
class Scarcity {
 public:
  explicit Scarcity(int spare) {
    getrlimit(RLIMIT_NOFILE, &usual_);
    const int highest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    taken_.push_back(highest);
    rlimit few = usual_;
    few.rlim_cur = static_cast<rlim_t>(highest + 64);
    setrlimit(RLIMIT_NOFILE, &few);
    while (taken_.back() >= 0) taken_.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    taken_.pop_back();
    for (int i = 0; i < spare; ++i) CloseOne();
  }
  ~Scarcity() {
    setrlimit(RLIMIT_NOFILE, &usual_);
    while (!taken_.empty()) CloseOne();
  }

 private:
  void CloseOne() {
    close(taken_.back());
    taken_.pop_back();
  }
  rlimit usual_ = {};
  std::vector<int> taken_;
};

// Accepts while the process may open `spare` more descriptors. It may fail, if it says so.
absl::Status AcceptWith(const Opened& opened, int spare) {
  CommPair pair;
  pair.net = opened.net.get();
  char handle[nccl::kHandleBytes] = {};
  NCCL_NET_TRY(Call(pair.net->listen(opened.context, 0, handle, &pair.listen), "listen"));
  for (int i = 0; i < 30; ++i) {
    NCCL_NET_TRY(Call(pair.net->connect(opened.context, 0, handle, &pair.send), "connect"));
    usleep(1000);
  }
  bool failed = false;
  bool connects = pair.send == nullptr;
  const auto step = [&] {
    if (pair.recv == nullptr && !failed) {
      failed = pair.net->accept(pair.listen, &pair.recv) != nccl::kSuccess;
    }
    if (connects) {
      connects = pair.net->connect(opened.context, 0, handle, &pair.send) == nccl::kSuccess &&
                 pair.send == nullptr;
    }
    return failed || pair.recv != nullptr;
  };
  bool ended = false;
  {
    const Scarcity scarcity(spare);
    const int64_t end_ms = NowMs() + 300;
    while (!(ended = step()) && NowMs() < end_ms) usleep(1000);
  }
  if (spare == 0 && !ended) {
    return absl::InternalError("accept waits where it may not open a single descriptor");
  }
  return Until("accepting after a want of descriptors",
               [&]() -> absl::StatusOr<bool> { return step() || !connects; });
}

absl::Status FewDescriptors(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  for (int spare = 0; spare <= 24; ++spare) {
    const absl::Status accepted = AcceptWith(opened, spare);
    if (!accepted.ok()) {
      return absl::Status(accepted.code(),
                          absl::StrCat(spare, " descriptors: ", accepted.message()));
    }
  }
  NCCL_NET_PAIR(pair, opened, Order::kInTurn);
  return Transfer(pair, 300'000, 300'000, 5);
}

// Makes `target` meet the limit of processes: no thread can be started.
absl::Status NoThreads(const Target& target) {
  pthread_attr_t usual;
  pthread_attr_t impossible;
  pthread_getattr_default_np(&usual);
  pthread_attr_init(&impossible);
  pthread_attr_setstacksize(&impossible, size_t{1} << 46);
  pthread_setattr_default_np(&impossible);
  (void)Open(target);
  pthread_setattr_default_np(&usual);
  NCCL_NET_OPEN(opened, target);
  NCCL_NET_PAIR(pair, opened, Order::kInTurn);
  return Transfer(pair, 300'000, 300'000, 5);
}

absl::Status RegisterStorm(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  NCCL_NET_PAIR(pair, opened, Order::kInTurn);
  std::vector<uint8_t> arena(1 << 20);
  std::vector<void*> handles;
  for (size_t i = 0; i < 3000; ++i) {
    void* handle = nullptr;
    // Overlapping, unaligned and repeated regions.
    const size_t begin = i * 7919 % (arena.size() / 2);
    const size_t bytes = 1 + i * 131 % (arena.size() / 2);
    NCCL_NET_TRY(Call(pair.net->reg(i % 2 == 0 ? pair.send : pair.recv, arena.data() + begin, bytes,
                                    nccl::kPointerHost, &handle),
                      "regMr"));
    handles.push_back(handle);
    if (i % 3 != 0) {
      const size_t which = i * 31 % handles.size();
      NCCL_NET_TRY(Call(pair.net->dereg(pair.send, handles[which]), "deregMr"));
      handles.erase(handles.begin() + static_cast<ptrdiff_t>(which));
    }
    if (i % 500 == 0) NCCL_NET_TRY(Transfer(pair, 10'000, 20'000, static_cast<uint32_t>(i)));
  }
  for (void* handle : handles) NCCL_NET_TRY(Call(pair.net->dereg(pair.send, handle), "deregMr"));
  return Transfer(pair, 1 << 20, 1 << 20, 8);
}

absl::Status InitAgain(const Target& target) {
  for (int round = 0; round < 3; ++round) {
    NCCL_NET_OPEN(opened, target);
    NCCL_NET_OPEN(other, target);  // A second communicator of the process.
    NCCL_NET_PAIR(pair, opened, Order::kInTurn);
    NCCL_NET_PAIR(second, other, Order::kInTurn);
    NCCL_NET_TRY(Transfer(pair, 1000, 1000, 2));
    NCCL_NET_TRY(Transfer(second, 1000, 1000, 3));
  }
  return absl::OkStatus();
}

absl::Status VirtualDevice(const Target& target) {
  NCCL_NET_OPEN(opened, target);
  if (!opened.net->make_virtual) return absl::UnimplementedError("the table has no makeVDevice");
  int count = 0;
  NCCL_NET_TRY(Call(opened.net->devices(&count), "devices"));
  std::vector<int> members = {0};
  if (count > 1) members.push_back(1);
  int device = -1;
  NCCL_NET_TRY(Call(opened.net->make_virtual(&device, members), "makeVDevice"));
  nccl::PropertiesV12 out = {};
  NCCL_NET_TRY(Call(opened.net->properties(device, &out), "getProperties"));
  if (out.members.count != static_cast<int>(members.size())) {
    return absl::InternalError("the virtual device has other members than it was made of");
  }
  absl::StatusOr<CommPair> pair = MakePair(opened, Order::kInTurn, device);
  if (!pair.ok()) return pair.status();
  return Transfer(*pair, 3 << 20, 3 << 20, 6);
}

}  // namespace

std::vector<Case> SetUpCases() {
  return {
      {"tables", "tables of v6 to v12 are whole", &Tables},
      {"each_version", "bytes arrive by every table", &EachVersion},
      {"properties", "devices have sensible properties", &Properties},
      {"connect_first", "connect may be called long before accept", &ConnectFirst},
      {"accept_first", "accept may be called long before connect", &AcceptFirst},
      {"in_turn", "connect and accept in turn", &InTurn},
      {"never_blocks", "connect and accept do not wait inside", &NeverBlocks},
      {"reuse_listen", "several connect to one listener, which may close first", &ReuseListen},
      {"close_orders", "the three comms close in any order", &CloseOrders},
      {"in_flight_close", "comms close with requests out", &InFlightClose},
      {"few_descriptors", "accept fails, and no more, without descriptors", &FewDescriptors,
       /*beyond=*/true},
      {"no_threads", "init fails, and no more, where no thread can be started", &NoThreads,
       /*beyond=*/true},
      {"register_storm", "overlapping memory, registered and given back at random", &RegisterStorm},
      {"init_again", "several contexts, one after the other and at once", &InitAgain},
      {"virtual_device", "a device made of others carries bytes", &VirtualDevice},
  };
}

}  // namespace tryst::nccl_net
