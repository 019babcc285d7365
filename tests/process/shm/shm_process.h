#ifndef TRYST_TESTS_PROCESS_SHM_SHM_PROCESS_H_
#define TRYST_TESTS_PROCESS_SHM_SHM_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "channel/poller/poller.h"
#include "channel/shm/shm_transport.h"
#include "channel/trace/trace.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/thread_alarms.h"
#include "tests/process/pair/one_step.h"
#include "tests/process/shm/local_bootstrap.h"

namespace tryst {

// The shared memory of one process, without the rest of a server: for either end of tests and
// benches with two processes. Its worker's name is also its socket's.
class ShmProcess final : public HelloHandler {
 public:
  struct Options {
    std::string worker;
    uint64_t incarnation = 1;
    uint64_t arena_bytes = 64 << 20;
    ShmOptions shm;
    bool thread = true;  // False: the caller of poller()->Turn() is the thread.
    int64_t spin_us = 20;
  };
  // Aborts if something fails. All operations are traced; the destructor aborts where what was
  // traced breaks the tables of states.
  explicit ShmProcess(const Options& options);
  ~ShmProcess() override;

  // A key from `producer` to `consumer`.
  static TensorKey Key(const std::string& producer, const std::string& consumer,
                       const std::string& edge);

  // A channel that fetches from `peer`. Poller thread only; closed with this object.
  FetchSession* Channel(const std::string& peer);
  LocalRendezvous* step() { return source_.step(); }
  Arena* arena() { return arena_.get(); }
  Poller* poller() { return &poller_; }
  ShmTransport* path() { return path_.get(); }
  const std::string& worker() const { return options_.worker; }

 private:
  void OnHello(const Hello& hello, HelloDone done) override;
  void Run(absl::AnyInvocable<void() &&> fn);

  const Options options_;
  const SteadyClock clock_;
  ThreadAlarms alarms_;
  OneStep source_;
  std::shared_ptr<Arena> arena_;
  Trace trace_;
  Poller poller_;
  LocalBootstrap bootstrap_;
  std::unique_ptr<ShmTransport> path_;
  std::unique_ptr<FetchSession> channel_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_SHM_SHM_PROCESS_H_
