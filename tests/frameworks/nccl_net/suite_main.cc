// nccl_net_suite: drives any net plugin for NCCL as NCCL's proxy does, on host memory.
// docs/NCCL.md says how to run it on yours.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/frameworks/nccl_net/cases.h"
#include "tests/frameworks/nccl_net/net_plugin.h"

namespace tryst::nccl_net {
namespace {

struct Arguments {
  std::vector<std::string> plugins;
  Target target;
  std::string only = ".*";
  int limit_s = 120;
  bool list = false;
  bool strict = false;
};

enum class Outcome { kPass, kFail, kSkip, kBeyond };

struct Line {
  Outcome outcome;
  std::string why;
};

// Runs in a process of its own, so that a plugin that crashes or hangs ends only this case.
Line RunCase(const Case& one, const Target& target, int limit_s) {
  int pipes[2];
  if (pipe(pipes) != 0) return {Outcome::kFail, "no pipe"};
  const pid_t pid = fork();
  if (pid == 0) {
    close(pipes[0]);
    setpgid(0, 0);
    alarm(static_cast<unsigned>(limit_s));
    const absl::Status result = one.run(target);
    const std::string why(result.message());
    (void)!write(pipes[1], why.data(), why.size());
    _exit(result.ok() ? 0 : result.code() == absl::StatusCode::kUnimplemented ? 2 : 1);
  }
  close(pipes[1]);
  std::string why;
  char buffer[512];
  ssize_t got = 0;
  while ((got = read(pipes[0], buffer, sizeof(buffer))) > 0) {
    why.append(buffer, static_cast<size_t>(got));
  }
  close(pipes[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  kill(-pid, SIGKILL);  // Also kills its ranks, if any are left.
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return {Outcome::kFail,
            number == SIGALRM ? "hung" : std::string("crashed: ") + strsignal(number)};
  }
  if (WEXITSTATUS(status) == 0) return {Outcome::kPass, ""};
  return {WEXITSTATUS(status) == 2 ? Outcome::kSkip : Outcome::kFail, why};
}

std::vector<Case> AllCases() {
  std::vector<Case> out;
  for (const std::vector<Case>& some : {SetUpCases(), TransferCases(), DeathCases()}) {
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

bool TakeFlag(absl::string_view argument, absl::string_view name, std::string* value) {
  if (argument.substr(0, name.size()) != name) return false;
  *value = std::string(argument.substr(name.size()));
  return true;
}

bool Parse(int count, char** values, Arguments* out) {
  for (int i = 1; i < count; ++i) {
    std::string value;
    if (TakeFlag(values[i], "--version=", &value)) {
      if (!absl::SimpleAtoi(value, &out->target.version)) return false;
    } else if (TakeFlag(values[i], "--kills=", &value)) {
      if (!absl::SimpleAtoi(value, &out->target.kills)) return false;
    } else if (TakeFlag(values[i], "--limit=", &value)) {
      if (!absl::SimpleAtoi(value, &out->limit_s)) return false;
    } else if (TakeFlag(values[i], "--only=", &value)) {
      out->only = value;
    } else if (TakeFlag(values[i], "--named=", &value)) {
      out->target.named_victim = value;
    } else if (std::string(values[i]) == "--list") {
      out->list = true;
    } else if (std::string(values[i]) == "--strict") {
      out->strict = true;
    } else if (values[i][0] == '-') {
      return false;
    } else {
      out->plugins.emplace_back(values[i]);
    }
  }
  return out->list || !out->plugins.empty();
}

int RunPlugin(const std::string& file, const Arguments& arguments) {
  Target target = arguments.target;
  target.file = file;
  int counts[4] = {};
  const std::regex only(arguments.only);
  printf("%s, %s\n", file.c_str(),
         target.version == 0 ? "its newest table" : std::to_string(target.version).c_str());
  for (const Case& one : AllCases()) {
    if (!std::regex_match(one.name, only)) continue;
    fflush(stdout);
    Line line = RunCase(one, target, arguments.limit_s);
    if (line.outcome == Outcome::kFail && one.beyond && !arguments.strict) {
      line.outcome = Outcome::kBeyond;
    }
    ++counts[static_cast<int>(line.outcome)];
    const char* const words[] = {"pass", "FAIL", "skip", "note"};
    printf("  %-17s %s  %s%s%s\n", one.name, words[static_cast<int>(line.outcome)], one.promise,
           line.why.empty() ? "" : ": ", line.why.c_str());
  }
  printf("  %d passed, %d failed, %d skipped, %d fail at more than NCCL asks for\n", counts[0],
         counts[1], counts[2], counts[3]);
  return counts[1] == 0 && counts[0] > 0 ? 0 : 1;
}

int Main(int count, char** values) {
  Arguments arguments;
  if (!Parse(count, values, &arguments)) {
    fprintf(stderr,
            "nccl_net_suite [--version=6..12] [--only=REGEX] [--kills=N] [--limit=SECONDS]\n"
            "               [--named=pid] [--strict] [--list] PLUGIN.so...\n");
    return 2;
  }
  if (arguments.list) {
    for (const Case& one : AllCases()) printf("%-17s %s\n", one.name, one.promise);
    return 0;
  }
  int code = 0;
  for (const std::string& file : arguments.plugins) code |= RunPlugin(file, arguments);
  return code;
}

}  // namespace
}  // namespace tryst::nccl_net

int main(int argc, char** argv) { return tryst::nccl_net::Main(argc, argv); }
