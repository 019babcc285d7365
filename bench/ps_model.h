#ifndef TRYST_BENCH_PS_MODEL_H_
#define TRYST_BENCH_PS_MODEL_H_

#include <cstdint>
#include <vector>

#include "verbs/sim/link_model.h"

namespace tryst {

// A parameter-server job larger than any machine at hand, in virtual time: who waits for
// which processor and which wire, and for how long. After LogGP: every message pays an
// overhead o of a processor at each end, its bytes' gap G on the sender's and on the
// receiver's wire, and the latency L between them; processors and wires take one thing at a
// time, in the order of arrival.
struct PsJob {
  int workers = 1000;
  int servers = 100;
  std::vector<uint64_t> variable_bytes;  // Variable i lives on server i % servers.
  int steps = 2;                         // Each worker by itself: pull all, push all.
  bool fused = false;                    // One request and one answer for all of a server's.
  bool standing = false;                 // Gradients are written without being asked for.
};

struct PsCosts {
  LinkModel link;  // Of every NIC, each way.
  int64_t request_bytes = 128;
  int64_t ask_ns = 500;       // The consumer's processor, for a request and for what lands,
  int64_t land_ns = 500;      // a message; fused ones are one message.
  int64_t answer_ns = 500;    // The producer's.
  int64_t tensor_ns = 0;      // And so much for each tensor in a message, at each end.
  int server_processors = 1;  // Pollers of a server. A worker has one.
};

struct PsPrediction {
  double step_ms = 0;  // Until every worker has done all its steps, divided by their number.
  // Of the servers, on average, while the job ran: from 0 to 1.
  double processors_busy = 0;
  double sending_busy = 0;
  double receiving_busy = 0;
  uint64_t events = 0;
};

// REQUIRES: at least one of everything.
PsPrediction Predict(const PsJob& job, const PsCosts& costs);

// The shortest possible step: the time that its busiest wire or processor needs.
double BoundMs(const PsJob& job, const PsCosts& costs);

}  // namespace tryst

#endif  // TRYST_BENCH_PS_MODEL_H_
