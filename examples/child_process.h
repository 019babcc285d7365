#ifndef TRYST_EXAMPLES_CHILD_PROCESS_H_
#define TRYST_EXAMPLES_CHILD_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tryst {

// Runs this program once more, with other arguments. The child gets SIGKILL when the thread that
// started it ends, and end of file on its standard input when this process ends.
//
// Start it from a process that has not used gRPC: gRPC's threads do not survive a fork.
class ChildProcess {
 public:
  // Both are called on a thread of ours: `on_line` with each line that the child prints, then
  // `on_end` once, after the last line. The child shares our standard error.
  using OnLine = std::function<void(const std::string& line)>;
  using OnEnd = std::function<void()>;
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& args,
                                                             OnLine on_line, OnEnd on_end);
  ~ChildProcess();  // Calls Kill() and Wait() if needed.

  pid_t pid() const { return pid_; }
  void CloseInput();  // Tells the child to end. Idempotent.
  void Kill();        // With SIGKILL.
  // Waits until the child has ended and `on_end` has returned. Returns its exit code, or 128 plus
  // the signal that ended it.
  int Wait();

 private:
  ChildProcess(pid_t pid, int input, int output, OnLine on_line, OnEnd on_end);

  const pid_t pid_;
  int input_;
  bool waited_ = false;
  int exit_code_ = 0;
  std::thread reader_;
};

// For the child: waits up to `within`, and returns true once the parent has closed our standard
// input.
bool InputEnds(absl::Duration within);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_CHILD_PROCESS_H_
