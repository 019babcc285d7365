#include "examples/pair.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "examples/child_process.h"
#include "examples/loopback.h"

namespace tryst {
namespace {

constexpr absl::string_view kSeedMark = "@seed ";  // A line for the launcher begins with it.
constexpr absl::Duration kStopDeadline = absl::Seconds(5);

int RunRole(const std::vector<std::string>& args, const Role& role) {
  std::vector<std::string> rest;
  auto server = StartServer(args, &rest);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("%s, process %d, at %s, protocol %s\n", (*server)->worker().c_str(), getpid(),
              (*server)->address().c_str(), (*server)->config().protocol.c_str());
  std::printf("%s%s\n", std::string(kSeedMark).c_str(), Seed(**server).c_str());
  const absl::Status done = role.run(server->get());
  const absl::Status stopped = (*server)->Stop(kStopDeadline);
  for (const absl::Status& status : {done, stopped}) {
    if (!status.ok()) {
      std::fprintf(stderr, "%s: %s\n", role.name.c_str(), status.ToString().c_str());
    }
  }
  return done.ok() && stopped.ok() ? 0 : 1;
}

// Waits for the first process to print its seed; empty when it ends without.
class FirstSeed {
 public:
  void Set(absl::string_view text) {
    if (known_.HasBeenNotified()) return;
    text_ = std::string(text);
    known_.Notify();
  }
  const std::string& Wait() {
    known_.WaitForNotification();
    return text_;
  }

 private:
  absl::Notification known_;
  std::string text_;
};

absl::StatusOr<int> Launch(const std::vector<std::string>& flags, const Role& first,
                           const Role& second) {
  const auto args = [&flags](const std::string& role) {
    std::vector<std::string> all = LoopbackFlags(role, 0);
    all.insert(all.end(), flags.begin(), flags.end());
    all.push_back(role);
    return all;
  };
  FirstSeed seed;
  const auto on_line = [&seed](const std::string& line) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, kSeedMark)) {
      seed.Set(rest);
    } else {
      std::printf("%s\n", line.c_str());
    }
  };
  auto one = ChildProcess::Start(args(first.name), on_line, [&seed] { seed.Set(""); });
  if (!one.ok()) return one.status();
  if (seed.Wait().empty()) return (*one)->Wait();
  std::vector<std::string> second_args = args(second.name);
  second_args.insert(second_args.begin(), absl::StrCat("--join=", seed.Wait()));
  auto other = ChildProcess::Start(second_args, on_line, [] {});
  if (!other.ok()) return other.status();
  const int second_code = (*other)->Wait();
  const int first_code = (*one)->Wait();
  return second_code != 0 ? second_code : first_code;
}

}  // namespace

int RunPair(const std::vector<std::string>& args, const Role& first, const Role& second) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  LogErrorsOnly();
  for (const Role& role : {first, second}) {
    if (!args.empty() && args.back() == role.name) return RunRole(args, role);
  }
  const absl::StatusOr<int> code = Launch(args, first, second);
  if (code.ok()) return *code;
  std::fprintf(stderr, "%s\n", code.status().ToString().c_str());
  return 1;
}

}  // namespace tryst
