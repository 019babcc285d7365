#include "tests/process/e2e/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tryst {

std::string TempFile(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", name);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Process::Process(const std::string& program, std::vector<std::string> args, int third) {
  static std::atomic<int> count{0};
  const int number = ++count;
  out_ = TempFile(absl::StrCat("out", number));
  err_ = TempFile(absl::StrCat("err", number));
  unlink(out_.c_str());  // An earlier run by hand may have left it.
  unlink(err_.c_str());
  args.insert(args.begin(), program);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(&arg[0]);
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
  dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
  if (third >= 0) dup2(third, 3);  // execv keeps it, unless it is `third` itself.
  if (third == 3) fcntl(3, F_SETFD, 0);
  execv(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  int status = 0;
  if (waitpid(pid_, &status, 0) == pid_) TellOfCrash(status);
}

// tools/test_summary.py looks for the word: what crashes has failed, whatever comes after it.
void Process::TellOfCrash(int status) {
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal != SIGSEGV && signal != SIGABRT && signal != SIGBUS && signal != SIGILL &&
      signal != SIGFPE) {
    return;
  }
  const std::string said = err();
  std::cerr << "CRASHED by signal " << signal
            << ", and said last: " << said.substr(said.size() - std::min<size_t>(said.size(), 2000))
            << std::endl;
}

void Process::Signal(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, signal);
  // On a busy machine its threads may run on until the one that stops them all does.
  for (int i = 0; signal == SIGSTOP && i < 10'000; ++i) {
    siginfo_t stopped = {};
    if (waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WNOHANG) != 0) return;
    if (stopped.si_pid == pid_) return;
    usleep(1'000);
  }
}

int Process::Wait(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (pid_ > 0) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      TellOfCrash(status);
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    if (absl::Now() > until) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return -1;
}

bool Process::Running() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) == 0) return pid_ > 0;
  pid_ = -1;
  TellOfCrash(status);
  return false;
}

std::string Process::Address() {
  for (int i = 0; i < 12000 && Running(); ++i) {
    const std::string text = out();
    if (absl::StrContains(text, "\n")) {
      const std::vector<std::string> words = absl::StrSplit(text, ' ');
      return words.size() > 3 ? words[3] : "";
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  ADD_FAILURE() << "does not serve: " << err();
  return "";
}

std::string Process::out() const { return ReadFile(out_); }
std::string Process::err() const { return ReadFile(err_); }

}  // namespace tryst
