#ifndef TRYST_TESTS_PAIR_WORKER_PAIR_H_
#define TRYST_TESTS_PAIR_WORKER_PAIR_H_

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
  // A thread for each poller, which spins so long. Without: whoever calls Turn() is both.
  bool threads = true;
  int64_t spin_us = 20;
  int producers = 1;
  // What becomes of the answer to a hello on its way. Null: nothing.
  std::function<void(Hello* answer)> tamper;
  int64_t max_held_bytes = 0;  // Of the step: what was sent and is not asked for. 0: no cap.
};

// A producer (or some) and a consumer in this process, each with a poller, a NIC and a pool,
// and one step between them: what is measured, and what is counted, without the rest of a server.
class WorkerPair {
 public:
  explicit WorkerPair(const WorkerPairOptions& options);  // Dies where something fails.
  ~WorkerPair();
  WorkerPair(const WorkerPair&) = delete;
  WorkerPair& operator=(const WorkerPair&) = delete;

  static TensorKey Key(absl::string_view edge, int producer = 0);
  LocalRendezvous* step() { return &step_; }
  ChannelPool* producer(size_t i = 0);
  ChannelPool* consumer();
  uint64_t consumer_tasks() const;  // That its poller has been handed. REQUIRES: no threads.
  // One turn of every poller. REQUIRES: no threads.
  void Turn();

 private:
  struct Worker;
  class Hellos;

  const bool threads_;
  const SteadyClock clock_;
  ThreadAlarms alarms_;
  LocalRendezvous step_;
  std::unique_ptr<Hellos> hellos_;
  std::vector<std::unique_ptr<Worker>> producers_;
  std::unique_ptr<Worker> consumer_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PAIR_WORKER_PAIR_H_
