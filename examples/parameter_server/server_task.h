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

// A parameter server: serves every worker that the cluster's membership shows, each in a session of
// its own, which ends with that incarnation of the worker. Thread-safe.
//
// Asynchronous: each gradient is applied when it arrives. Synchronous: the mean of all gradients is
// applied when every worker's has arrived; a worker that goes is no longer waited for. Each server
// counts its own rounds. When a worker dies after it has sent a gradient to one server and before
// it sends the other's, the two servers count it differently.
class ServerTask {
 public:
  // The arguments outlive it. REQUIRES: `server` has started. With `detailed` it prints all that is
  // known of each connection.
  ServerTask(Server* server, const Layout& layout, Shard* shard, bool synchronous, bool detailed);
  ~ServerTask();  // REQUIRES: the server has stopped.

  // Opens sessions for new workers. Call it every now and then.
  void Watch();
  absl::Status Save(const std::string& path);
  int64_t updates();
  // How many workers it serves now, and whether it has ever served one.
  size_t sessions();
  bool has_served();

 private:
  class Session;
  struct Gradients {
    std::vector<int32_t> ids;
    Tensor rows;  // Both tensors are invalid when the worker only evaluated.
    Tensor dense;
  };

  Tensor Rows(absl::Span<const int32_t> ids);
  Tensor Dense();
  void Contribute(const std::shared_ptr<Session>& session, Gradients gradients);
  void End(const std::shared_ptr<Session>& session);
  // If the round is complete, the sessions that may go on.
  std::vector<std::shared_ptr<Session>> FinishRound() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  Server* const server_;
  const Layout layout_;
  const bool synchronous_;
  const bool detailed_;

  Mutex mu_;
  Shard* const shard_ ABSL_PT_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);  // By worker.
  std::map<std::string, uint64_t> seen_ ABSL_GUARDED_BY(mu_);  // The last incarnation of each.
  // Synchronous: which sessions have sent their gradients in this round.
  std::vector<std::pair<std::shared_ptr<Session>, Gradients>> round_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_SERVER_TASK_H_
