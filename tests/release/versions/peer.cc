// One worker of a pair that may be of two releases: does what its standard input says, a line
// at a time, and answers each line with one of its own. It compiles in the tree of the last
// release too, so it uses what both releases have of the public headers.
//
//   send STEP EDGE FIRST COUNT BYTES TO    sends tensors FIRST, FIRST+1, ... of one key: "sent" and
//                                          this worker's incarnation
//   dead STEP EDGE TO                      sends a dead tensor: "sent"
//   recv STEP EDGE HOW COUNT BYTES TIMEOUT_MS FROM [INCARNATION]
//                                          "got" and for each receive the number of its tensor,
//                                          "dead", "wrong", or the name of its status. Of FROM's
//                                          present life where none is named
//   cancel STEP EDGE BYTES AFTER_MS FROM   the same of a receive that is cancelled by then
//   abort STEP                             aborts the step on this worker: "aborted"
//   path PEER                              "path" and what Explain() says of the peer
//
// HOW: "one" after another, "all" at once, "into" memory of ours one after another, "many" by
// one RecvMany. BYTES below 0 stands for a tensor of strings. Its flags are a server's settings.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/server.h"

// The forms of the last release are deprecated here.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tryst {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

uint8_t ByteAt(const std::string& edge, uint64_t number, int64_t i) {
  uint64_t x = number * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(i >> 3) + edge.size() + edge[0];
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<uint8_t>(x >> (8 * (i & 7)));
}

// A tensor carries its number in its first eight bytes, if it has that many.
absl::StatusOr<Tensor> Make(const std::string& edge, uint64_t number, int64_t bytes) {
  if (bytes < 0) return Tensor::FromStrings({edge, "", absl::StrCat(number)}, TensorShape({3}));
  auto tensor = Tensor::Allocate(DType::kUint8, TensorShape({bytes}));
  if (!tensor.ok()) return tensor;
  auto* data = static_cast<uint8_t*>(tensor->mutable_data());
  for (int64_t i = 0; i < bytes; ++i) data[i] = ByteAt(edge, number, i);
  if (bytes >= 8) std::memcpy(data, &number, 8);
  return tensor;
}

// A receive's outcome, in one word.
std::string Word(const std::string& edge, int64_t bytes, const absl::Status& status,
                 const Tensor& got, bool is_dead) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", edge.c_str(), status.ToString().c_str());
    return absl::StatusCodeToString(status.code());
  }
  if (is_dead) return "dead";
  if (bytes < 0) {
    const auto* words = got.dtype() == DType::kString ? got.data_as<std::string>() : nullptr;
    const bool right = words != nullptr && got.shape() == TensorShape({3}) && words[0] == edge;
    return right && words[1].empty() ? words[2] : "wrong";
  }
  if (got.dtype() != DType::kUint8 || got.shape() != TensorShape({bytes})) return "wrong";
  const auto* data = got.data_as<uint8_t>();
  uint64_t number = 0;
  if (bytes >= 8) std::memcpy(&number, data, 8);
  for (int64_t i = bytes >= 8 ? 8 : 0; i < bytes; ++i) {
    if (data[i] != ByteAt(edge, number, i)) return "wrong";
  }
  return absl::StrCat(number);
}

// The fields of a line; not every line has all of them.
struct Order {
  std::string edge, how;
  uint64_t first = 0;
  int64_t count = 1, bytes = 0, milliseconds = 0;
};

class Peer {
 public:
  explicit Peer(Server* server) : server_(server) {}

  absl::StatusOr<std::string> Obey(const std::string& line) {
    std::istringstream words(line);
    std::string what, peer;
    int64_t step = 0;
    Order order;
    words >> what;
    if (what == "path") {
      words >> peer;
      return absl::StrCat("path ",
                          absl::StrJoin(absl::StrSplit(server_->Explain(peer), '\n'), "|"));
    }
    words >> step;
    if (what == "abort") {
      server_->steps()->AbortStep(step, absl::AbortedError("the test aborts it"));
      return "aborted";
    }
    auto started = server_->steps()->StartStep(step);
    if (!started.ok()) return started.status();
    step_ = *std::move(started);
    words >> order.edge;
    if (what == "send") {
      words >> order.first >> order.count >> order.bytes >> peer;
      return Send(order, peer);
    }
    if (what == "dead") {
      words >> peer;
      absl::Status sent = step_->Send(KeyTo(peer, order.edge), {}, Tensor(), /*is_dead=*/true);
      if (!sent.ok()) return sent;
      return "sent";
    }
    if (what == "cancel") {
      words >> order.bytes >> order.milliseconds >> peer;
    } else {
      words >> order.how >> order.count >> order.bytes >> order.milliseconds >> peer;
    }
    uint64_t incarnation;
    if (!(words >> incarnation)) {
      const auto heard = server_->calls()->Ping(peer, kPatience);
      if (!heard.ok()) return heard.status();
      incarnation = heard->self.incarnation;
    }
    const TensorKey key = Key(peer, incarnation, server_->worker(), order.edge);
    if (what == "cancel") return Cancel(order, key);
    if (what != "recv") return absl::InvalidArgumentError(line);
    if (order.how == "all") return RecvAll(order, key);
    if (order.how == "many") return RecvMany(order, key);
    return RecvOneByOne(order, key);
  }

 private:
  static TensorKey Key(const std::string& from, uint64_t incarnation, const std::string& to,
                       const std::string& edge) {
    return TensorKeyPrefix::Make(from + "/device:CPU:0", incarnation, to + "/device:CPU:0", edge)
        ->At(0, 0);
  }
  TensorKey KeyTo(const std::string& consumer, const std::string& edge) const {
    return Key(server_->worker(), server_->incarnation(), consumer, edge);
  }
  static absl::Duration Timeout(const Order& order) {
    return absl::Milliseconds(order.milliseconds);
  }

  absl::StatusOr<std::string> Send(const Order& order, const std::string& peer) {
    for (int64_t i = 0; i < order.count; ++i) {
      auto tensor = Make(order.edge, order.first + static_cast<uint64_t>(i), order.bytes);
      if (!tensor.ok()) return tensor.status();
      absl::Status sent =
          step_->Send(KeyTo(peer, order.edge), {}, *std::move(tensor), /*is_dead=*/false);
      if (!sent.ok()) return sent;
    }
    return absl::StrCat("sent ", server_->incarnation());
  }

  absl::StatusOr<std::string> RecvOneByOne(const Order& order, const TensorKey& key) {
    std::string said = "got";
    for (int64_t i = 0; i < order.count; ++i) {
      Args args;
      if (order.how == "into") {
        auto into = Tensor::Allocate(DType::kUint8, TensorShape({order.bytes}));
        if (!into.ok()) return into.status();
        args.destination = *std::move(into);
      }
      const auto got = step_->Recv(key, args, Timeout(order));
      absl::StrAppend(&said, " ",
                      got.ok()
                          ? Word(order.edge, order.bytes, got->status, got->tensor, got->is_dead)
                          : Word(order.edge, order.bytes, got.status(), Tensor(), false));
    }
    return said;
  }

  absl::StatusOr<std::string> RecvAll(const Order& order, const TensorKey& key) {
    const SteadyClock clock;
    Args args;
    args.deadline = Deadline::After(clock, Timeout(order));
    std::vector<std::string> words(static_cast<size_t>(order.count));
    absl::BlockingCounter left(static_cast<int>(order.count));
    for (std::string& word : words) {
      step_->RecvAsync(key, args,
                       [&word, &left, &order](const absl::Status& status, const Args&, const Args&,
                                              const Tensor& tensor, bool is_dead) {
                         word = Word(order.edge, order.bytes, status, tensor, is_dead);
                         left.DecrementCount();
                       });
    }
    left.Wait();
    return absl::StrCat("got ", absl::StrJoin(words, " "));
  }

  absl::StatusOr<std::string> RecvMany(const Order& order, const TensorKey& key) {
    const SteadyClock clock;
    Args args;
    args.deadline = Deadline::After(clock, Timeout(order));
    const std::vector<TensorKey> keys(static_cast<size_t>(order.count), key);
    std::vector<std::string> words;
    absl::Notification ended;
    step_->RecvManyAsync(keys, args, [&](const absl::Status&, absl::Span<Received> results) {
      for (const Received& got : results) {
        words.push_back(Word(order.edge, order.bytes, got.status, got.tensor, got.is_dead));
      }
      ended.Notify();
    });
    ended.WaitForNotification();
    return absl::StrCat("got ", absl::StrJoin(words, " "));
  }

  absl::StatusOr<std::string> Cancel(const Order& order, const TensorKey& key) {
    Cancellation cancellation;
    Args args;
    args.cancellation = &cancellation;
    std::thread canceller([&] {
      absl::SleepFor(Timeout(order));
      cancellation.StartCancel();
    });
    const auto got = step_->Recv(key, args, kPatience);
    canceller.join();
    return absl::StrCat(
        "got ", got.ok() ? Word(order.edge, order.bytes, got->status, got->tensor, got->is_dead)
                         : Word(order.edge, order.bytes, got.status(), Tensor(), false));
  }

  Server* const server_;
  std::shared_ptr<Rendezvous> step_;  // The step of the present line.
};

int Main(const std::vector<std::string>& args) {
  std::vector<std::string> rest;
  const auto config = LoadConfig(args, ProcessEnvironment(), &rest);
  if (!config.ok()) return std::cerr << config.status() << "\n", 1;
  auto server = ServerBuilder().Build(*config);
  if (!server.ok()) return std::cerr << server.status() << "\n", 1;
  const absl::Status started = (*server)->Start();
  if (!started.ok()) return std::cerr << started << "\n", 1;
  std::cout << "serving " << (*server)->worker() << " at " << (*server)->address() << std::endl;
  Peer peer(server->get());
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto said = peer.Obey(line);
    std::cout << (said.ok() ? *said : absl::StrCat("error ", said.status().ToString()))
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
