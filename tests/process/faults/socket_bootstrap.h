#ifndef TRYST_TESTS_PROCESS_FAULTS_SOCKET_BOOTSTRAP_H_
#define TRYST_TESTS_PROCESS_FAULTS_SOCKET_BOOTSTRAP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/bootstrap.h"

namespace tryst {

// Hellos between two workers over plain TCP, each at an address of its own. It stands for gRPC in
// programs whose process must end and come back within milliseconds.
class SocketBootstrap final : public Bootstrap {
 public:
  // "host:port" with numeric hosts. Aborts if it cannot listen.
  SocketBootstrap(const std::string& listen, std::string peer, uint64_t incarnation);
  ~SocketBootstrap() override;

  void Start(HelloHandler* handler);
  void Stop();
  void Exchange(const std::string& peer, const Hello& hello, Deadline deadline,
                HelloDone done) override;
  // The peer's present incarnation. Waits for a fraction of a second.
  absl::StatusOr<uint64_t> AskIncarnation();

 private:
  struct Job {
    Hello hello;
    HelloDone done;
  };
  void Serve();
  void Answer(int socket);
  void CarryOut();

  const std::string peer_;
  const uint64_t incarnation_;
  int listener_ = -1;
  HelloHandler* handler_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::thread server_;
  std::thread client_;
  Mutex mu_;
  CondVar more_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_FAULTS_SOCKET_BOOTSTRAP_H_
