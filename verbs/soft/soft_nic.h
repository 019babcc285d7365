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
#include "base/crew.h"
#include "verbs/nic.h"
#include "verbs/soft/soft_pipe.h"

// A NIC in user space: queue pairs, regions and completions as in hardware, carried by stream
// sockets. It has no thread of its own: bytes
// move inside Poll() and PostSend(), or by the helpers of a crew. A peer that does not poll for
// ack_timeout * (retry_count + 1) while we wait for it counts as lost. So the timeouts must exceed
// the longest time for which a thread may be kept from its processor.
namespace tryst {

NicLimits DefaultSoftNicLimits();

struct SoftNicOptions {
  // Has helpers make the system calls that move large messages, over one more socket for each of
  // them; there are at most seven.
  void UseCrew(std::shared_ptr<Crew> helpers);

  std::string name = "soft";
  // "host:port", "[v6]:port" (numeric hosts), or "unix:" for peers of this host only, without TCP.
  // With commas between them up to eight addresses of IP, each of a network of its own: then a
  // queue pair has a socket in each at least, and goes on without those that break
  // (docs/decisions/0081-several-networks.md). A worker names its networks in the same order as its
  // peers.
  // Every completion queue has its own listening socket, so that it shares nothing with other
  // threads: a port other than 0 is the first of `listen_ports` consecutive ones.
  std::string listen_address = "127.0.0.1:0";
  uint16_t listen_ports = 16;
  // The host by which peers reach us; the listening host unless set. Of one address only.
  std::string advertised_host;
  // Carry the bytes in place of sockets; then there are no TLS and no helpers here, and
  // listen_address and what belongs to it are not used. Null: sockets do.
  std::shared_ptr<SoftPipes> pipes;
  // To each address of the peer, for large messages: where the network holds each flow to a part of
  // the link, or one takes a slow path. Both sides name the same number.
  int flows = 1;
  // The two sides use the smaller number; as many at least as there are flows, and the first. More
  // are useful with helpers (docs/decisions/0061-help-with-large-tensors.md). Those after the first
  // are dialled with the first large message.
  int sockets_per_queue_pair = 1;
  std::shared_ptr<Crew> crew;       // UseCrew(). May be null.
  uint64_t stripe_bytes = 1 << 20;  // Messages of this size or more use all sockets.
  // TLS 1.3 with the queue pair's token as the shared key; on both sides or on neither. It costs
  // the cipher's work for each byte. Who reads a queue pair's address can then speak for it, so
  // addresses must travel in secret, or:
  bool tls = false;
  // A secret of all peers, under a key of which an address hides its token. Empty: it does not.
  std::string secret;
  // How long an acknowledgement waits for a message to ride on, while the poller sleeps too. 0: not
  // when it sleeps.
  absl::Duration ack_delay = absl::ZeroDuration();
  // What one socket may bring in one turn, and a queue pair take, so that the others get theirs.
  uint64_t bytes_per_turn = 4 << 20;
  // How long a work waits for the peer's receive, times (rnr_retry_count + 1).
  absl::Duration rnr_timer = absl::Milliseconds(10);
  // How long a stranger may take to authenticate.
  absl::Duration handshake_timeout = absl::Seconds(2);
  // For each completion queue; the oldest is dropped for a new one.
  int max_pending_handshakes = 64;
  const Clock* clock = nullptr;  // Null: SteadyClock.
  // Fills the span with random bytes; thread-safe. Null: getrandom(2). Keys and tokens come from
  // it, so only tests may use something predictable.
  std::function<void(absl::Span<uint8_t>)> random;
  NicLimits limits = DefaultSoftNicLimits();
};

struct SoftNicCounters {
  uint64_t connections_accepted = 0;
  uint64_t tokens_refused = 0;        // A wrong token or number, or one that was used before.
  uint64_t handshakes_timed_out = 0;  // Or displaced by newer ones.
  uint64_t protocol_errors = 0;       // Peers that sent what no peer of ours sends.
};

class SoftNic : public Nic {
 public:
  virtual SoftNicCounters counters() const = 0;  // Thread-safe.
};

// kInvalidArgument: an address does not parse. kUnavailable: it cannot be listened on.
absl::StatusOr<std::unique_ptr<SoftNic>> OpenSoftNic(SoftNicOptions options);

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_NIC_H_
