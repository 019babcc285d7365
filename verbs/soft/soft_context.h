#ifndef TRYST_VERBS_SOFT_SOFT_CONTEXT_H_
#define TRYST_VERBS_SOFT_SOFT_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/socket.h"
#include "verbs/soft/soft_blocks.h"
#include "verbs/soft/soft_nic.h"
#include "verbs/soft/soft_region_table.h"
#include "verbs/soft/soft_tls.h"

namespace tryst {

// Asynchronous events on their way to the owner of the Nic. Thread-safe.
class SoftEvents {
 public:
  SoftEvents();
  void Add(const NicEvent& event);  // Drops the event if nobody has taken any for long.
  absl::optional<NicEvent> Take();
  int fd() const { return fd_.get(); }

 private:
  const Fd fd_;  // An eventfd; readable while there are events.
  Mutex mu_;
  std::deque<NicEvent> events_ ABSL_GUARDED_BY(mu_);
};

// What a SoftNic shares with everything made from it. Outlives all of that. Thread-safe.
struct SoftContext {
  explicit SoftContext(SoftNicOptions given);
  Token NewToken() const;
  Token NewTokenOf(const QueuePairOptions& queue_pair) const;

  const SoftNicOptions options;                // No field is null.
  const std::vector<SocketAddress> addresses;  // Those that options.listen_address names.
  const SteadyClock steady_clock;
  const Clock* const clock;
  std::unique_ptr<SoftTls> tls;  // Null: no TLS. Constant after OpenSoftNic().
  SoftBlocks region_blocks;
  SoftRegionTable regions;
  SoftEvents events;
  std::atomic<uint32_t> next_queue_pair;
  std::atomic<uint64_t> connections_accepted{0};
  std::atomic<uint64_t> tokens_refused{0};
  std::atomic<uint64_t> handshakes_timed_out{0};
  std::atomic<uint64_t> protocol_errors{0};
  // When an end last waited for a peer that did not read.
  std::atomic<int64_t> waited_in_vain_ns{std::numeric_limits<int64_t>::min() / 2};
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_CONTEXT_H_
