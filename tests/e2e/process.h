#ifndef TRYST_TESTS_E2E_PROCESS_H_
#define TRYST_TESTS_E2E_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tryst {

// A program of ours in a process of its own, which does not outlive this object. What it
// prints goes to files.
class Process {
 public:
  // `program` as Bazel has it: "server/trystd". It finds a duplicate of `third` as descriptor 3.
  Process(const std::string& program, std::vector<std::string> args, int third = -1);
  ~Process();  // SIGKILL if it still runs.
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal);
  // The exit code; -1: still there after `timeout`, or ended by a signal.
  int Wait(absl::Duration timeout = absl::Seconds(30));
  bool Running();
  // "serving WORKER at ADDRESS ...", once it says so: ADDRESS. Fails the test if it does not.
  std::string Address();

  std::string out() const;
  std::string err() const;

 private:
  pid_t pid_ = -1;
  std::string out_;
  std::string err_;
};

// In the test's own folder.
std::string TempFile(const std::string& name);
std::string ReadFile(const std::string& path);
// That nobody listens on now.
int FreePort();
std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more);

}  // namespace tryst

#endif  // TRYST_TESTS_E2E_PROCESS_H_
