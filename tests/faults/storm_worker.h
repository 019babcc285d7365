#ifndef TRYST_TESTS_FAULTS_STORM_WORKER_H_
#define TRYST_TESTS_FAULTS_STORM_WORKER_H_

#include <string>

#include "tests/faults/worker_page.h"

namespace tryst {

struct StormWorkerOptions {
  std::string name;     // "a" or "b"; the other one is the peer.
  std::string nic;      // "soft", or the name of an RDMA device.
  std::string address;  // Where soft listens: a host.
  std::string listen;   // Of the bootstrap: "host:port".
  std::string peer;
  uint64_t incarnation = 0;
  WorkerPage* page = nullptr;
};

// A process of the storm: serves its peer tensors that it numbers, and fetches its peer's,
// sixteen at a time; each must be the next of its key, whole. When the peer is another
// than it was, it begins anew with that one. Ends when told on the page; the exit code.
int RunStormWorker(const StormWorkerOptions& options);

}  // namespace tryst

#endif  // TRYST_TESTS_FAULTS_STORM_WORKER_H_
