#ifndef TRYST_BENCH_PS_MODEL_H_
#define TRYST_BENCH_PS_MODEL_H_

#include <cstdint>
#include <vector>

#include "tests/doubles/sim_nic/link_model.h"

namespace tryst {

// Computes, in virtual time, how long the steps of a parameter-server job take that is too large
// for any machine at hand. It follows LogGP: each message costs an overhead o of a processor at
// each end, a gap G for each byte on the sender's and on the receiver's wire, and the latency L
// between them. Processors and wires take one thing at a time, in the order of arrival.
struct PsJob {
  int workers = 1000;
  int servers = 100;
  std::vector<uint64_t> variable_bytes;  // Variable i lives on server i % servers.
  int steps = 2;          // In each, every worker pulls all variables, then pushes all gradients.
  bool fused = false;     // One request and one answer for all variables of a server.
  bool standing = false;  // Gradients are written without a request.
};

struct PsCosts {
  LinkModel link;  // Every NIC has it, in each direction.
  int64_t request_bytes = 128;
  // On the consumer's processor: for a request, and for a message that lands. Fused tensors are
  // one message.
  int64_t ask_ns = 500;
  int64_t land_ns = 500;
  int64_t answer_ns = 500;    // On the producer's processor.
  int64_t tensor_ns = 0;      // In addition, for each tensor in a message, at each end.
  int server_processors = 1;  // Pollers of a server. A worker has one.
};

struct PsPrediction {
  double step_ms = 0;  // The time until every worker has done all steps, divided by their number.
  // How busy the servers were while the job ran, on average: 0 to 1.
  double processors_busy = 0;
  double sending_busy = 0;
  double receiving_busy = 0;
  uint64_t events = 0;
};

// REQUIRES: at least one worker, server, variable and step.
PsPrediction Predict(const PsJob& job, const PsCosts& costs);

// The shortest possible step: the time that its busiest wire or processor needs.
double BoundMs(const PsJob& job, const PsCosts& costs);

}  // namespace tryst

#endif  // TRYST_BENCH_PS_MODEL_H_
