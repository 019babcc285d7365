#ifndef TRYST_TESTS_PROCESS_PAIR_WORKER_PAIR_H_
#define TRYST_TESTS_PROCESS_PAIR_WORKER_PAIR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "channel/bootstrap.h"
#include "channel/poller/poller.h"
#include "channel/transports.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/thread_alarms.h"
#include "verbs/nic.h"

namespace tryst {

struct WorkerPairOptions {
  std::function<std::unique_ptr<Nic>()> open_nic;
  std::function<void(TransportsOptions*)> adjust;
  // True: each poller has a thread, which spins for spin_us. False: the caller of Turn() is the
  // thread of both.
  bool threads = true;
  int64_t spin_us = 20;
  int producers = 1;
  // Changes the answer to a hello on its way. Null: no change.
  std::function<void(Hello* answer)> tamper;
  int64_t max_held_bytes = 0;  // A step's, sent and not fetched yet. 0: no cap.
  // All operations are traced, and held against the tables of states when the pair is taken down.
  // False: what is measured is without that.
  bool traced = true;
};

// One or several producers and a consumer in this process, each with a poller, a NIC and a pool,
// and one step between them: what tests measure and count, without the rest of a server.
class WorkerPair {
 public:
  // Aborts if something fails; so does the destructor where what was traced breaks a rule.
  explicit WorkerPair(const WorkerPairOptions& options);
  ~WorkerPair();
  WorkerPair(const WorkerPair&) = delete;
  WorkerPair& operator=(const WorkerPair&) = delete;

  static TensorKey Key(absl::string_view edge, int producer = 0);
  LocalRendezvous* step() { return &step_; }
  ChannelPool* producer(size_t i = 0);
  ChannelPool* consumer();
  // How many tasks were posted to its poller. REQUIRES: no threads.
  uint64_t consumer_tasks() const;
  // One turn of every poller. REQUIRES: no threads.
  void Turn();

 private:
  struct Worker;
  class Hellos;

  std::vector<Worker*> Workers();
  void JudgeWhatIsTraced();

  const bool threads_;
  const SteadyClock clock_;
  ThreadAlarms alarms_;
  LocalRendezvous step_;
  std::unique_ptr<Hellos> hellos_;
  std::vector<std::unique_ptr<Worker>> producers_;
  std::unique_ptr<Worker> consumer_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PAIR_WORKER_PAIR_H_
