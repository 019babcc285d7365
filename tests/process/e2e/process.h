#ifndef TRYST_TESTS_PROCESS_E2E_PROCESS_H_
#define TRYST_TESTS_PROCESS_E2E_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tryst {

// Runs one of our programs in a process that does not outlive this object. Its output goes to
// files.
class Process {
 public:
  // `program` is Bazel's path: "server/trystd". The process gets a duplicate of `third` as
  // descriptor 3.
  Process(const std::string& program, std::vector<std::string> args, int third = -1);
  ~Process();  // Sends SIGKILL if it still runs.
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal);
  // The exit code; -1: it still runs after `timeout`, or a signal ended it.
  int Wait(absl::Duration timeout = absl::Seconds(30));
  bool Running();
  // Waits for "serving WORKER at ADDRESS ..." and returns ADDRESS. Fails the test if it does not
  // come.
  std::string Address();

  std::string out() const;
  std::string err() const;

 private:
  void TellOfCrash(int status);
  pid_t pid_ = -1;
  std::string out_;
  std::string err_;
};

// A path in the test's own folder.
std::string TempFile(const std::string& name);
std::string ReadFile(const std::string& path);
std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_E2E_PROCESS_H_
