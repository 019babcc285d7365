#ifndef TRYST_RENDEZVOUS_COUNTERS_H_
#define TRYST_RENDEZVOUS_COUNTERS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// What happened so far, and at the end of the list what is waiting now.
struct RendezvousCounters {
  int64_t sends = 0;      // Accepted.
  int64_t receives = 0;   // Asked for.
  int64_t delivered = 0;  // Pairs, dead ones too.
  int64_t delivered_bytes = 0;
  int64_t dead = 0;              // Delivered dead.
  int64_t refused_over_cap = 0;  // Sends with kResourceExhausted.
  int64_t aborted_receives = 0;  // By the step's abort, waiting or late.
  int64_t aborted_sends = 0;     // Dropped while waiting, or late.
  int64_t cancelled = 0;
  int64_t deadline_exceeded = 0;
  int64_t changed_after_send = 0;  // Found by Options::check_immutable.
  int64_t given_back = 0;          // Delivered to a take, and returned by it.
  int64_t fetches = 0;             // Receives that went to another worker.
  int64_t takes = 0;               // Requests of other workers.
  int64_t deferred = 0;            // Takes that came before their step started.
  int64_t tombstone_hits = 0;      // Takes of a step that was cleaned up.
  int64_t steps_started = 0;
  int64_t steps_expired = 0;  // Asked for by a peer, never started.
  // Gauges.
  int64_t waiting_sends = 0;
  int64_t waiting_receives = 0;
  int64_t waiting_fetches = 0;
  int64_t held_bytes = 0;  // Waiting sends hold them.
  int64_t steps = 0;
  int64_t tombstones = 0;

  RendezvousCounters& operator+=(const RendezvousCounters& other);
  std::string ToText() const;  // "sends 3\nreceives 3\n..."
};

// One row for each counter, in order: what docs and metrics are made from.
struct CounterRow {
  absl::string_view name;
  bool gauge;
  int64_t RendezvousCounters::*value;
};
extern const CounterRow kCounterRows[];
extern const int kCounterRowCount;

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_COUNTERS_H_
