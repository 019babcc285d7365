#include "examples/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/time/clock.h"

namespace tryst {
namespace {

// Runs between fork and exec, so it may call only what is safe there.
[[noreturn]] void Become(const std::vector<char*>& argv, int input, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

void ReadLines(int fd, const ChildProcess::OnLine& on_line) {
  FILE* stream = fdopen(fd, "r");
  char* line = nullptr;
  size_t room = 0;
  for (ssize_t n; (n = getline(&line, &room, stream)) > 0;) {
    if (line[n - 1] == '\n') --n;
    on_line(std::string(line, static_cast<size_t>(n)));
  }
  free(line);
  fclose(stream);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& args, OnLine on_line, OnEnd on_end) {
  std::vector<std::string> copies = args;
  copies.insert(copies.begin(), program_invocation_name);
  std::vector<char*> argv;
  for (std::string& text : copies) argv.push_back(&text[0]);
  argv.push_back(nullptr);

  int input[2];
  int output[2];
  if (pipe2(input, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  if (pipe2(output, O_CLOEXEC) != 0) {
    const int error = errno;
    close(input[0]);
    close(input[1]);
    return absl::ErrnoToStatus(error, "pipe");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  const int error = errno;
  if (pid == 0) Become(argv, input[0], output[1], parent);
  close(input[0]);
  close(output[1]);
  if (pid < 0) {
    close(input[1]);
    close(output[0]);
    return absl::ErrnoToStatus(error, "fork");
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, input[1], output[0], std::move(on_line), std::move(on_end)));
}

ChildProcess::ChildProcess(pid_t pid, int input, int output, OnLine on_line, OnEnd on_end)
    : pid_(pid),
      input_(input),
      reader_([output, on_line = std::move(on_line), on_end = std::move(on_end)] {
        ReadLines(output, on_line);
        on_end();
      }) {}

ChildProcess::~ChildProcess() {
  Kill();
  Wait();
}

void ChildProcess::CloseInput() {
  if (input_ >= 0) close(std::exchange(input_, -1));
}

void ChildProcess::Kill() {
  if (!waited_) kill(pid_, SIGKILL);
}

int ChildProcess::Wait() {
  CloseInput();
  if (waited_) return exit_code_;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  waited_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  reader_.join();
  return exit_code_;
}

bool InputEnds(absl::Duration within) {
  const absl::Time until = absl::Now() + within;
  for (;;) {
    const absl::Duration left = std::max(absl::ZeroDuration(), until - absl::Now());
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(
        &input, 1, static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Seconds(60)))));
    char byte;
    if (ready > 0 && read(STDIN_FILENO, &byte, 1) == 0) return true;
    if (left == absl::ZeroDuration()) return false;
  }
}

}  // namespace tryst
