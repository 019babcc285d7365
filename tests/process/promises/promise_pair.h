#ifndef TRYST_TESTS_PROCESS_PROMISES_PROMISE_PAIR_H_
#define TRYST_TESTS_PROCESS_PROMISES_PROMISE_PAIR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/server.h"
#include "tests/process/e2e/process.h"
#include "tests/process/e2e/tested_paths.h"
#include "tests/process/promises/wire_line.h"

namespace tryst {

// Parameters that a test passes to the process that it starts.
using Numbers = std::map<std::string, int64_t>;

// One worker, embedded as a user would do it: a server, and the names of its tensors.
struct Worker {
  Server* server;
  std::shared_ptr<Rendezvous> Step(int64_t step) const;  // Starts the step. Aborts if it is over.
  // The key of a tensor from here to the worker `to`.
  TensorKey KeyTo(const std::string& to, const std::string& edge, uint64_t iter = 0) const;
};
TensorKey KeyBetween(const std::string& from, uint64_t incarnation, const std::string& to,
                     const std::string& edge, uint64_t iter = 0);
constexpr char kThisEnd[] = "/job:worker/replica:0/task:0";
std::string OtherName(int task);  // "/job:ps/replica:0/task:TASK"

// What the other process runs once its server has started. Returns the exit code. `line` leads to
// the test.
using Role = std::function<int(const Worker& self, const Numbers& numbers, WireLine* line)>;

// The other process: this program, started again for a role.
class OtherEnd {
 public:
  // Where it ends by itself, it leaves what it has traced in `trace_file`.
  OtherEnd(int task, const std::string& role, std::vector<std::string> settings,
           const Numbers& numbers, const std::string& trace_file);
  // Waits until it serves. False: it does not, and the test has failed.
  bool AwaitReady();
  uint64_t incarnation() const { return incarnation_; }
  const std::string& name() const { return name_; }
  WireLine* line() { return line_.get(); }
  // Sends SIGKILL, and returns when the process is gone.
  void Kill();
  // Stops the process until GoOn().
  void Stop();
  void GoOn();
  // The exit code of a role that ends by itself.
  int Wait(absl::Duration timeout = absl::Minutes(1)) { return process_->Wait(timeout); }
  std::string words() const { return process_->out() + process_->err(); }
  // The key of its tensors to this process.
  TensorKey Key(const std::string& edge, uint64_t iter = 0) const {
    return KeyBetween(name_, incarnation_, kThisEnd, edge, iter);
  }

 private:
  const std::string name_;
  uint64_t incarnation_ = 0;
  std::unique_ptr<WireLine> line_;
  std::unique_ptr<Process> process_;
};

// Beside the server's flags: an end with 32 slots on every path, so that few keys wait for one, and
// pollers that do not spin.
inline constexpr char kFewSlotsFlag[] = "--few_slots=1";

// This process as one worker, and as many others as the test starts.
class PromisePair {
 public:
  // `settings` are server flags for both ends.
  explicit PromisePair(const TestedPath& path, std::vector<std::string> settings = {},
                       int others = 1);
  // Holds what all ends that live have traced against the tables (verify_traces.h).
  ~PromisePair();

  const Worker& self() const { return self_; }
  std::unique_ptr<OtherEnd> Start(const std::string& role, const Numbers& numbers = {},
                                  int task = 0) const;
  // Whether all tensors came by the path that was asked for.
  bool CameByThePath() const;

 private:
  std::vector<std::string> FlagsOf(const std::string& job, int task) const;
  void VerifyTraces() const;

  const TestedPath path_;
  std::vector<std::string> settings_;
  std::string spec_;
  mutable std::vector<std::string> trace_files_;  // One for each end that was started.
  std::unique_ptr<Server> server_;
  Worker self_{};
};

// How much longer things may take in a debug build, as with sanitizers.
#ifdef NDEBUG
constexpr int kSlowness = 1;
#else
constexpr int kSlowness = 5;
#endif

// A flag of the test program, such as "--kills=1000", for a long run.
int64_t TestFlag(const std::string& name, int64_t otherwise);

// main() of a test: plays a role if it was started for one, otherwise runs the tests.
int RunPromises(int argc, char** argv, const std::map<std::string, Role>& roles);

// A tensor of int64 with its number in every element, so that a torn one shows.
Tensor Numbered(int64_t number, int64_t elements);
// The tensor's number; -1 if its elements differ.
int64_t NumberOf(const Tensor& tensor);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PROMISES_PROMISE_PAIR_H_
