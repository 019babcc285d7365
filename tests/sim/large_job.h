#ifndef TRYST_TESTS_SIM_LARGE_JOB_H_
#define TRYST_TESTS_SIM_LARGE_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "channel/transports.h"

namespace tryst {

// A parameter-server job of a thousand hosts in one process: the channels that ship over
// simulated NICs, on virtual time. Every worker by itself: pulls all variables, which are spread
// over the servers in turn, and pushes as many gradients; the servers have asked for them ahead.
//
// A NIC is one wire each way (SimOptions::shared_ports), and a message costs a processor the time
// that the model (bench/ps_model.h) is told, so that a step can be held against its bound.
struct LargeJobOptions {
  // What happens while the job runs, after everybody's first step.
  enum class Trouble {
    kNone,
    kKills,    // One host in a hundred dies at once, and is started again.
    kRack,     // Forty hosts in a thousand hear and are heard by nobody for two seconds.
    kRolling,  // Every host ends and starts again, one after the other.
  };

  uint64_t seed = 1;
  int workers = 90;
  int servers = 10;
  int variables = 1000;
  bool small_variables = false;  // 1/16 of the bytes of each.
  int steps = 4;
  Trouble trouble = Trouble::kNone;
  int64_t message_ns = 1180;  // As `./run bench scale` has measured.
  int64_t gbits = 400;
  int server_processors = 4;      // One poller here, so many times as fast.
  bool shipped_settings = false;  // Else small ones: LargeJobTransports().
  int64_t limit_s = 120;          // Virtual time: what has not ended by then hangs.
};

struct LargeJobReport {
  double join_ms = 0;  // Until everybody has done its first step, from nothing.
  double step_ms = 0;  // All workers together, once they are under way.
  double slowest_step_ms = 0;
  double bound_ms = 0;  // No schedule is quicker: BoundMs().
  double predicted_ms = 0;
  double host_kib = 0;  // Resident memory, on the average, tensors on their way included.
  double messages_per_host_step = 0;  // That crossed a wire.
  uint64_t tensors = 0;
  uint64_t asked_again = 0;  // After a fetch that ended with a status.
  uint64_t connections = 0;
  uint64_t restarts = 0;
  double trouble_ms = 0;  // From its beginning until the last step that it held up has ended.
  uint64_t events = 0;
  double seconds = 0;                   // Real time.
  std::vector<std::string> violations;  // Empty when all is well.
};

// Each host gets an eighth of the slots, and small rings. A thousand hosts are 180,000 connections.
TransportsOptions LargeJobTransports();
LargeJobReport RunLargeJob(const LargeJobOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_LARGE_JOB_H_
