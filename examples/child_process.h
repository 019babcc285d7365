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

// This program once more, with other arguments. It gets SIGKILL when the thread that
// started it ends, and end of file on its standard input when we stop or die.
//
// Start it from a process that has not used gRPC: gRPC's threads do not survive a fork.
class ChildProcess {
 public:
  // Called in order on a thread of ours: with each line that it prints, and when there will
  // be no more, because it has ended. Its standard error is ours.
  using OnLine = std::function<void(const std::string& line)>;
  using OnEnd = std::function<void()>;
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& args,
                                                             OnLine on_line, OnEnd on_end);
  ~ChildProcess();  // Kill() and Wait() if need be.

  pid_t pid() const { return pid_; }
  void CloseInput();  // By which it knows that it may go. Idempotent.
  void Kill();        // -9.
  // Returns its exit code, or 128 and the signal that ended it, when it has gone and
  // `on_end` has returned.
  int Wait();

 private:
  ChildProcess(pid_t pid, int input, int output, OnLine on_line, OnEnd on_end);

  const pid_t pid_;
  int input_;
  bool waited_ = false;
  int exit_code_ = 0;
  std::thread reader_;
};

// For the child: true once the parent has closed our standard input; waits so long for it.
bool InputEnds(absl::Duration within);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_CHILD_PROCESS_H_
