// A worker that obeys its standard input, line by line:
//   send STEP EDGE BYTES TO
//   recv STEP EDGE FROM        prints "received STEP EDGE STATUS" when it has ended
//   own SET                    opens a set of weights as its only owner
//   seal NUMBER                publishes and seals a version
//   activate NUMBER            prints "activated NUMBER STATUS" when it has ended
//   join SET OWNER [VERSIONS]  opens it as a member that stages so many versions, or all
// Its flags are a server's settings. It ends with its input.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "server/server.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"

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

// The ends of sets of weights that it has open.
class Weights {
 public:
  ~Weights() {
    over_.StartCancel();
    for (std::thread& thread : threads_) thread.join();
  }
  // False: `what` is no word of these.
  bool Obey(Server* server, const std::string& what, std::istringstream* words) {
    std::string set, from;
    uint64_t number = 0;
    if (what == "own") {
      *words >> set;
      WeightOwnerOptions options;
      options.set = set;
      options.owners = {server->worker()};
      owner_ = *WeightOwner::Open(server, options);
      TensorLayout layout;
      layout.name = "w";
      layout.dtype = DType::kInt32;
      layout.shape = {4};
      return owner_->Declare({layout}).ok();
    }
    if (what == "seal") {
      *words >> number;
      const Tensor bytes = *Tensor::Allocate(DType::kInt32, {4});
      return owner_->Publish(number, "w", Box::Whole({4}), bytes, Dense({4})).ok() &&
             owner_->Seal(number, "", absl::Seconds(20)).ok();
    }
    if (what == "activate") {
      *words >> number;
      threads_.emplace_back([this, number] {
        const absl::Status done =
            owner_->Activate(number, ActivateMode::kRolling, Patience(absl::Seconds(60), &over_));
        Say(absl::StrCat("activated ", number, " ", absl::StatusCodeToString(done.code())));
      });
      return true;
    }
    if (what != "join") return false;
    int64_t versions = INT64_MAX;
    *words >> set >> from;
    if (!(*words >> versions)) versions = INT64_MAX;
    WeightMemberOptions options;
    options.set = set;
    options.owners = {from};
    member_ = *WeightMember::Open(server, options);
    threads_.emplace_back([this, versions] { Follow(versions); });
    return true;
  }

 private:
  void Follow(int64_t versions) {
    const Patience patience(absl::Hours(1), &over_);
    for (;;) {
      const auto event = member_->NextEvent(patience);
      if (!event.ok()) return;
      const Tensor into = *Tensor::Allocate(DType::kInt32, {4});
      switch (event->kind) {
        case WeightEvent::Kind::kPrepare:
          if (versions-- > 0) {
            (void)member_->Vote(
                event->number,
                member_->Stage(event->number, {{"w", Box::Whole({4}), into, Dense({4})}},
                               patience));
          }
          break;
        case WeightEvent::Kind::kHold:
          (void)member_->Held(event->number);
          break;
        case WeightEvent::Kind::kActive:
          (void)member_->Switched(event->number);
          break;
        default:
          break;
      }
    }
  }

  std::unique_ptr<WeightOwner> owner_;
  std::unique_ptr<WeightMember> member_;
  Cancellation over_;
  std::vector<std::thread> threads_;
};

absl::Status Obey(Server* server, Weights* weights, const std::string& line) {
  std::istringstream words(line);
  std::string what, edge, peer;
  int64_t step = 0, bytes = 0;
  words >> what;
  if (weights->Obey(server, what, &words)) {
    Say("done " + line);
    return absl::OkStatus();
  }
  words >> step >> edge;
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
  Weights weights;
  std::string line;
  while (std::getline(std::cin, line)) {
    const absl::Status obeyed = Obey(server->get(), &weights, line);
    if (!obeyed.ok()) Say(absl::StrCat("error ", obeyed.ToString()));
  }
  return 0;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  return tryst::Main(std::vector<std::string>(argv + 1, argv + argc));
}
