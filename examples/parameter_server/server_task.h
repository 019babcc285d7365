#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_SERVER_TASK_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_SERVER_TASK_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "examples/parameter_server/shard.h"
#include "server/server.h"

namespace tryst {

// A parameter server: serves every worker that the cluster's membership shows, each in a
// session of its own, which ends when that life of the worker does. Thread-safe.
//
// Asynchronous: a gradient is applied when it comes. Synchronous: when one of every
// worker has come, as their mean; a worker that goes is no longer waited for. Rounds are
// each server's own: on the way of a worker that dies between two servers one may count
// it and the other not.
class ServerTask {
 public:
  // Arguments outlive it. REQUIRES: `server` has started.
  ServerTask(Server* server, const Layout& layout, Shard* shard, bool synchronous);
  ~ServerTask();  // REQUIRES: the server has stopped.

  // Opens sessions for workers that are new. Call it now and then.
  void Watch();
  absl::Status Save(const std::string& path);
  int64_t updates();
  // How many workers it serves now; whether it has ever served one.
  size_t sessions();
  bool has_served();

 private:
  class Session;
  struct Gradients {
    std::vector<int32_t> ids;
    Tensor rows;  // Both invalid when the worker only looked.
    Tensor dense;
  };

  Tensor Rows(absl::Span<const int32_t> ids);
  Tensor Dense();
  void Contribute(const std::shared_ptr<Session>& session, Gradients gradients);
  void End(const std::shared_ptr<Session>& session);
  // The sessions that may go on, if the round is complete.
  std::vector<std::shared_ptr<Session>> FinishRound() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  Server* const server_;
  const Layout layout_;
  const bool synchronous_;

  Mutex mu_;
  Shard* const shard_ ABSL_PT_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);  // By worker.
  std::map<std::string, uint64_t> seen_ ABSL_GUARDED_BY(mu_);  // The last life of each.
  // Synchronous: who has come in this round, with what.
  std::vector<std::pair<std::shared_ptr<Session>, Gradients>> round_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_SERVER_TASK_H_
