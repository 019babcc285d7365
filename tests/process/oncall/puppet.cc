// A worker that obeys its standard input, line by line:
//   send STEP EDGE BYTES TO
//   recv STEP EDGE FROM        prints "received STEP EDGE STATUS" when it has ended
// Its flags are a server's settings. It ends with its input.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "server/server.h"

namespace tryst {
namespace {

Mutex stdout_mu;

void Say(const std::string& text) {
  MutexLock lock(&stdout_mu);
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

TensorKey Key(const std::string& from, uint64_t incarnation, const std::string& to,
              const std::string& edge) {
  return *TensorKey::Parse(
      absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0", from, incarnation, to, edge));
}

absl::Status Obey(Server* server, const std::string& line) {
  std::istringstream words(line);
  std::string what, edge, peer;
  int64_t step = 0, bytes = 0;
  words >> what >> step >> edge;
  auto rendezvous = server->steps()->StartStep(step);
  if (!rendezvous.ok()) return rendezvous.status();
  if (what == "send") {
    words >> bytes >> peer;
    auto tensor = Tensor::Allocate(DType::kUint8, TensorShape({bytes}));
    if (!tensor.ok()) return tensor.status();
    return (*rendezvous)
        ->Send(Key(server->worker(), server->incarnation(), peer, edge), {}, *std::move(tensor),
               false);
  }
  words >> peer;
  const auto heard = server->calls()->Ping(peer, absl::Seconds(10));
  if (!heard.ok()) return heard.status();
  RecvArgs args;
  args.executor = server->executor();
  (*rendezvous)
      ->RecvAsync(Key(peer, heard->self.incarnation, server->worker(), edge), args,
                  [step, edge, keep = *rendezvous](Received&& got) {
                    Say(absl::StrCat("received ", step, " ", edge, " ",
                                     absl::StatusCodeToString(got.status.code())));
                  });
  Say(absl::StrCat("asked ", step, " ", edge));
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  std::vector<std::string> rest;
  const auto config = LoadConfig(args, ProcessEnvironment(), &rest);
  if (!config.ok()) return std::cerr << config.status() << "\n", 1;
  auto server = ServerBuilder().Build(*config);
  if (!server.ok()) return std::cerr << server.status() << "\n", 1;
  const absl::Status started = (*server)->Start();
  if (!started.ok()) return std::cerr << started << "\n", 1;
  Say(absl::StrCat("serving ", (*server)->worker(), " at ", (*server)->address(), " status ",
                   (*server)->status_address()));
  std::string line;
  while (std::getline(std::cin, line)) {
    const absl::Status obeyed = Obey(server->get(), line);
    if (!obeyed.ok()) Say(absl::StrCat("error ", obeyed.ToString()));
  }
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
