#ifndef TRYST_TESTS_PROCESS_FAULTS_STORM_WORKER_H_
#define TRYST_TESTS_PROCESS_FAULTS_STORM_WORKER_H_

#include <string>

#include "tests/process/faults/worker_page.h"

namespace tryst {

struct StormWorkerOptions {
  std::string name;     // "a" or "b"; the peer is the other one.
  std::string nic;      // "soft", or the name of an RDMA device.
  std::string address;  // The host on which the software NIC listens.
  std::string listen;   // "host:port" of the bootstrap.
  std::string peer;
  uint64_t incarnation = 0;
  std::string history;  // A file for what this life sees (tests/process/history).
  WorkerPage* page = nullptr;
};

// One process of the storm: serves its peer numbered tensors, and fetches the peer's, sixteen at a
// time. Each must be the next of its key, complete. When the peer's incarnation changes, it begins
// anew. Ends when the page says so; returns the exit code.
int RunStormWorker(const StormWorkerOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_FAULTS_STORM_WORKER_H_
