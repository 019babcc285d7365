#ifndef TRYST_TESTS_ATTACK_HONEST_JOB_H_
#define TRYST_TESTS_ATTACK_HONEST_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tryst {

// A ps and a worker in processes of their own (tests/process/e2e/load_worker), which exchange
// tensors and check every byte. The ps is the one attacked. The destructor ends both.
class HonestJob {
 public:
  // `load_worker` is the program. Files go to `folder`.
  HonestJob(const std::string& load_worker, const std::string& folder,
            const std::vector<std::string>& flags);
  ~HonestJob();
  HonestJob(const HonestJob&) = delete;
  HonestJob& operator=(const HonestJob&) = delete;

  // Waits until tensors arrive. False: they do not.
  bool Begins();
  // How many tensors have arrived, at both, since the start.
  uint64_t received() const;
  // What is wrong with it; empty: nothing.
  std::string Trouble() const;
  uint64_t log_bytes() const;
  pid_t ps() const { return ps_; }
  int port() const { return port_; }
  static const char* ps_name() { return "/job:ps/replica:0/task:0"; }
  // The TCP ports and abstract sockets on which the ps listens beside its gRPC port.
  std::vector<int> OtherPorts() const;
  std::vector<std::string> AbstractSockets() const;

 private:
  pid_t StartWorker(const std::string& name, const std::vector<std::string>& flags);

  const std::string program_;
  const std::string folder_;
  int port_ = 0;
  pid_t ps_ = -1;
  pid_t worker_ = -1;
};

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_HONEST_JOB_H_
