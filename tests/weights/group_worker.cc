// An owner or a member of the set of known_weights.h that is told by lines on descriptor 3 what to
// do, for tests.
//
//   group_worker owner RANK OWNERS PROTOCOL SEED|-
//   group_worker member TASK OWNERS PROTOCOL SEED [waits]
//
// With CLUSTER@etcd:ENDPOINTS in SEED's place workers find each other by etcd, which has the set's
// log, too.
//
// An owner does "publish N", "seal N SECONDS", "activate N rolling|barrier SECONDS", and prints
// "took LINE: DURATION" and "done LINE: STATUS". A member stages, checks, votes, holds and switches
// by itself, and prints what it does; every second one has what it fetches for others; with "waits"
// it votes when it is told "vote". It prints "serves N NS" whenever what it may serve changes; NS
// is CLOCK_MONOTONIC's.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "server/server.h"
#include "server/weights/weight_member.h"
#include "server/weights/weight_owner.h"
#include "tests/weights/known_weights.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

constexpr char kSet[] = "policy";

struct Words {
  std::string role, protocol, seed;
  int task = 0;
  uint32_t owners = 0;
  bool waits = false;
  std::string cluster = "weights", resolver;
};

int Fail(const std::string& what, const absl::Status& why) {
  fprintf(stderr, "group_worker: %s: %s\n", what.c_str(), why.ToString().c_str());
  return 1;
}

void Print(const std::string& line) {
  printf("%s\n", line.c_str());
  fflush(stdout);
}

// False: nobody says anything any more.
bool ReadLine(FILE* from, std::string* line) {
  char text[256];
  if (fgets(text, sizeof(text), from) == nullptr) return false;
  *line = std::string(absl::StripTrailingAsciiWhitespace(text));
  return true;
}

std::vector<std::string> OwnerNames(uint32_t owners) {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < owners; ++rank) {
    names.push_back(absl::StrCat("/job:owner/replica:0/task:", rank));
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Server>> Start(const Words& words) {
  ServerConfig config;
  config.cluster = words.cluster;
  config.job = words.role;
  config.task = words.task;
  config.protocol = words.protocol == "grpc" ? "grpc" : "grpc+verbs";
  config.nic = "soft";
  config.shm = words.protocol == "shm" ? "on" : "off";
  config.insecure = true;
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  if (!words.resolver.empty()) {
    config.resolver = words.resolver;
  } else if (words.seed != "-") {
    config.join = words.seed;
  }
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  if (!server.ok()) return server.status();
  const absl::Status started = (*server)->Start();
  if (!started.ok()) return started;
  Print(absl::StrCat("serving ", (*server)->worker(), " at ", (*server)->address()));
  return server;
}

absl::Status Publish(WeightOwner* owner, const Words& words, uint64_t number) {
  for (const TensorLayout& layout : KnownLayouts(words.owners)) {
    for (const Box& box : BoxesOf(layout, words.task)) {
      const Tensor bytes =
          layout.name == "cast" ? KnownFloats(layout, number, box) : KnownBox(layout, number, box);
      const absl::Status published =
          owner->Publish(number, layout.name, box, bytes, Dense(box.extent));
      if (!published.ok()) return published;
    }
  }
  return absl::OkStatus();
}

absl::Status Do(WeightOwner* owner, const Words& words, const std::string& line) {
  const std::vector<std::string> said = absl::StrSplit(line, ' ');
  uint64_t number = 0;
  int seconds = 0;
  if (said.size() < 2 || !absl::SimpleAtoi(said[1], &number))
    return absl::InvalidArgumentError(line);
  if (said[0] == "publish") return Publish(owner, words, number);
  if (!absl::SimpleAtoi(said.back(), &seconds)) return absl::InvalidArgumentError(line);
  if (said[0] == "seal") {
    return owner->Seal(number, absl::StrCat("step ", number), absl::Seconds(seconds)).status();
  }
  return owner->Activate(number,
                         said[2] == "barrier" ? ActivateMode::kBarrier : ActivateMode::kRolling,
                         absl::Seconds(seconds));
}

int BeOwner(Server* server, const Words& words) {
  WeightOwnerOptions options;
  options.set = kSet;
  options.owners = OwnerNames(words.owners);
  options.rank = words.task;
  options.log_in_etcd = !words.resolver.empty();
  auto owner = WeightOwner::Open(server, options);
  if (!owner.ok()) return Fail("open", owner.status());
  const absl::Status declared = (*owner)->Declare(KnownLayouts(words.owners));
  if (!declared.ok()) return Fail("declare", declared);
  FILE* const orders = fdopen(3, "r");
  std::string line;
  while (ReadLine(orders, &line)) {
    const absl::Time begun = absl::Now();
    const absl::Status done = Do(owner->get(), words, line);
    Print(absl::StrCat("took ", line, ": ", absl::FormatDuration(absl::Now() - begun)));
    Print(absl::StrCat("done ", line, ": ", done.ToString()));
  }
  return 0;
}

absl::Status Stage(WeightMember* member, uint64_t number, uint32_t owners) {
  const std::vector<TensorLayout> layouts = KnownLayouts(owners);
  std::vector<WeightMember::Item> items;
  for (const TensorLayout& layout : layouts) {
    auto into = Tensor::Allocate(layout.dtype, layout.shape);
    if (!into.ok()) return into.status();
    const Box box = Box::Whole(layout.shape);
    items.push_back({layout.name, box, *into, Dense(box.extent)});
  }
  const absl::Status staged = member->Stage(number, items, absl::Seconds(30));
  if (!staged.ok()) return staged;
  for (size_t i = 0; i < items.size(); ++i) {
    const absl::Status right =
        CheckKnown(layouts[i], number, items[i].box, items[i].into, items[i].places);
    if (!right.ok()) return right;
  }
  return absl::OkStatus();
}

// Prints each change of what may be served.
void Watch(const WeightMember* member, const std::atomic<bool>* ends) {
  uint64_t served = UINT64_MAX;
  while (!*ends) {
    const uint64_t number = member->Serve().number;
    if (number != served) {
      Print(absl::StrCat("serves ", number, " ", SteadyClock().NowNs()));
      served = number;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

int Follow(WeightMember* member, const Words& words) {
  FILE* const orders = fdopen(3, "r");
  for (;;) {
    const auto event = member->NextEvent(absl::InfiniteDuration());
    if (!event.ok()) return Fail("event", event.status());
    const uint64_t number = event->number;
    Print(absl::StrCat(WeightEventName(event->kind), " ", number));
    absl::Status done;
    if (event->kind == WeightEvent::Kind::kPrepare) {
      const absl::Status staged = Stage(member, number, words.owners);
      Print(absl::StrCat("staged ", number, ": ", staged.ToString()));
      std::string line;
      if (words.waits && !ReadLine(orders, &line)) return 0;
      done = member->Vote(number, staged);
      Print(absl::StrCat("voted ", number));
    } else if (event->kind == WeightEvent::Kind::kHold) {
      done = member->Held(number);
    } else if (event->kind == WeightEvent::Kind::kActive) {
      done = member->Switched(number);
    }
    // The version is wanted no more, which is told next.
    if (!done.ok()) Print(absl::StrCat("late ", number, ": ", done.ToString()));
  }
}

int BeMember(Server* server, const Words& words) {
  WeightMemberOptions options;
  options.set = kSet;
  options.owners = OwnerNames(words.owners);
  options.hold_bytes = words.task % 2 == 0 ? uint64_t{1} << 30 : 0;
  auto member = WeightMember::Open(server, options);
  if (!member.ok()) return Fail("open", member.status());
  std::atomic<bool> ends{false};
  std::thread watches(Watch, member->get(), &ends);
  const int code = Follow(member->get(), words);
  ends = true;
  watches.join();
  return code;
}

int Run(const std::vector<std::string>& args) {
  Words words;
  if (args.size() < 5 || !absl::SimpleAtoi(args[1], &words.task) ||
      !absl::SimpleAtoi(args[2], &words.owners)) {
    fprintf(stderr, "usage: group_worker owner|member TASK OWNERS PROTOCOL SEED|- [waits]\n");
    return 2;
  }
  words.role = args[0];
  words.protocol = args[3];
  words.seed = args[4];
  words.waits = args.size() > 5;
  if (const size_t at = words.seed.find("@etcd:"); at != words.seed.npos) {
    words.cluster = words.seed.substr(0, at);
    words.resolver = words.seed.substr(at + 1);
  }
  auto server = Start(words);
  if (!server.ok()) return Fail("start", server.status());
  return words.role == "owner" ? BeOwner(server->get(), words) : BeMember(server->get(), words);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) { return tryst::Run({argv + 1, argv + argc}); }
