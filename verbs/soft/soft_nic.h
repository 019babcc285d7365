#ifndef TRYST_VERBS_SOFT_SOFT_NIC_H_
#define TRYST_VERBS_SOFT_SOFT_NIC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "verbs/nic.h"

// A NIC in user space: queue pairs, regions and completions as hardware has them,
// carried by stream sockets. It has no thread of its own: bytes move inside Poll() and
// PostSend(). A peer that does not poll for ack_timeout * (retry_count + 1) while we
// wait for it is taken for lost, so the timeouts must exceed the longest time a thread
// may be kept from its CPU.
namespace tryst {

NicLimits DefaultSoftNicLimits();

struct SoftNicOptions {
  std::string name = "soft";
  // "host:port", "[v6]:port" (numeric hosts), or "unix:" for peers of this host only,
  // without TCP. Every completion queue listens by itself, so that it shares nothing
  // with other threads: a port other than 0 is the first of `listen_ports` in a row.
  std::string listen_address = "127.0.0.1:0";
  uint16_t listen_ports = 16;
  std::string advertised_host;  // Where peers find us; the listening host unless set.
  // Two sides use the smaller number. More than one only pays where one flow cannot
  // fill the link (docs/decisions/0010-soft-nic-io.md).
  int sockets_per_queue_pair = 1;
  uint64_t stripe_bytes = 1 << 20;  // Messages from this size use all sockets.
  // TLS 1.3 with the queue pair's token as the key that both sides share; both sides or
  // neither. Costs a copy and the cipher's work for each byte.
  bool tls = false;
  // How long a work waits for the peer's receive, times (rnr_retry_count + 1).
  absl::Duration rnr_timer = absl::Milliseconds(10);
  // A stranger must have said who it is within this time.
  absl::Duration handshake_timeout = absl::Seconds(2);
  int max_pending_handshakes = 64;  // Per completion queue; the oldest makes room.
  const Clock* clock = nullptr;     // SteadyClock if null.
  // Fills the span with random bytes, from any thread. getrandom(2) if null; anything
  // predictable is for tests only, since keys and tokens come from it.
  std::function<void(absl::Span<uint8_t>)> random;
  NicLimits limits = DefaultSoftNicLimits();
};

struct SoftNicCounters {
  uint64_t connections_accepted = 0;
  uint64_t tokens_refused = 0;        // Wrong token or number, or one used before.
  uint64_t handshakes_timed_out = 0;  // Or pushed out by newer ones.
  uint64_t protocol_errors = 0;       // Peers that sent what no peer of ours sends.
};

class SoftNic : public Nic {
 public:
  virtual SoftNicCounters counters() const = 0;  // Any thread.
};

// kInvalidArgument for an address that does not parse, kUnavailable for one that cannot
// be listened on.
absl::StatusOr<std::unique_ptr<SoftNic>> OpenSoftNic(SoftNicOptions options);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_NIC_H_
