#ifndef TRYST_TESTS_DOUBLES_SERVER_CUT_PROXY_H_
#define TRYST_TESTS_DOUBLES_SERVER_CUT_PROXY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tryst {

// For tests: forwards TCP connections on the loopback, and can cut them or change what they carry.
class CutProxy {
 public:
  explicit CutProxy(int target_port);
  ~CutProxy();
  int port() const { return port_; }
  std::string address() const;

  // Cuts each connection after it has carried `bytes` from the target; -1: never.
  void CutAfterBytes(int64_t bytes) { cut_after_bytes_.store(bytes); }
  // Cuts all open connections.
  void CutNow();
  // From now on nothing comes through, and nobody is told.
  void Swallow() { swallows_.store(true); }
  // Changes one bit in each of the next `times` runs of 64 bytes 0xd5 that come from the target.
  void DamageRuns(int times) { damage_runs_.store(times); }
  int damaged() const { return damaged_.load(); }
  void Refuse(bool refuse) { refuse_.store(refuse); }
  int connections() const { return connections_.load(); }
  int64_t bytes_back() const { return bytes_back_.load(); }

 private:
  struct Pair;
  void Accept();
  void Forward(const std::shared_ptr<Pair>& pair, bool back);
  void Damage(char* bytes, size_t count);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int64_t> cut_after_bytes_{-1};
  std::atomic<bool> refuse_{false};
  std::atomic<bool> swallows_{false};
  std::atomic<int> damage_runs_{0};
  std::atomic<int> damaged_{0};
  std::atomic<int> connections_{0};
  std::atomic<int64_t> bytes_back_{0};
  Mutex mu_;
  std::vector<std::shared_ptr<Pair>> pairs_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SERVER_CUT_PROXY_H_
