#ifndef TRYST_TESTS_PROCESS_SHM_LOCAL_BOOTSTRAP_H_
#define TRYST_TESTS_PROCESS_SHM_LOCAL_BOOTSTRAP_H_

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "channel/bootstrap.h"

namespace tryst {

// Hellos between processes of this host without a server. Each end listens on an abstract Unix
// socket, named after it, and answers one hello for each connection.
class LocalBootstrap final : public Bootstrap {
 public:
  LocalBootstrap() = default;
  ~LocalBootstrap() override { Stop(); }

  // Answers hellos to `name` with `handler` until Stop(). False: the name is taken.
  bool Serve(const std::string& name, HelloHandler* handler);
  void Stop();

  void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                HelloDone done) override;

 private:
  void Loop(HelloHandler* handler);

  int listen_fd_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  Mutex mu_;
  std::vector<std::thread> exchanges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_SHM_LOCAL_BOOTSTRAP_H_
