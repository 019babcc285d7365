#ifndef TRYST_RENDEZVOUS_LOCAL_RENDEZVOUS_H_
#define TRYST_RENDEZVOUS_LOCAL_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "rendezvous/alarms.h"
#include "rendezvous/allocator.h"
#include "rendezvous/counters.h"
#include "rendezvous/held_bytes.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/waiting.h"

namespace tryst {

class MatchCore;

// The matching table: where sends and receives of one worker and one step meet.
// The table is split into shards by the key's hash. Each shard's lock guards its part of the table
// and its abort flag together, so that an aborted rendezvous keeps no item. Callbacks run after
// unlocking. In steady state nothing is allocated. A pair costs one uncontended lock for each side;
// a receive that waits with a cancellation, a deadline or an executor two more.
class LocalRendezvous final : public Rendezvous {
 public:
#ifdef NDEBUG
  static constexpr bool kDebug = false;
#else
  static constexpr bool kDebug = true;
#endif
  // The least that a waiting send is charged, because its entry in the table takes memory, too.
  static constexpr int64_t kMinChargeBytes = 256;

  struct Options {
    int shards = 8;              // 1 to 1024; rounded up to a power of two.
    int64_t max_held_bytes = 0;  // Waiting sends may hold so much; 0: no cap.
    // A tensor whose bytes have changed between Send and its receive ends the receive
    // with kFailedPrecondition. Reads every waiting tensor twice.
    bool check_immutable = kDebug;
    // For RoutingRendezvous: tensors may be of device memory. A receive then waits for the sender's
    // stream although its key names the CPU at both ends, as they do in keys of programs
    // that do not care.
    bool has_devices = false;
    // For RoutingRendezvous: where selected bytes are gathered. Null: in memory of the heap. It
    // outlives every tensor of it.
    Allocator* gathers_into = nullptr;
    // Tests: called wherever another thread may get in between two lock rounds, with no
    // lock held, with the name of the place and the number of the item.
    std::function<void(const char* place, uint64_t item)> between_locks;
  };

  // `alarms` and the executors given outlive every `done`. `process` may be null.
  LocalRendezvous(const Options& options, Alarms* alarms,
                  std::shared_ptr<HeldBytes> process = nullptr);
  // Aborts with kCancelled. REQUIRES: no call is in progress; a `done` may be.
  ~LocalRendezvous() override;

  absl::Status Send(const TensorKey& key, const SendArgs& args, Tensor tensor,
                    bool is_dead) override;
  // Refused over a cap when the items together would not fit, although receives may
  // already wait for some.
  absl::Status SendMany(absl::Span<SendItem> items, const SendArgs& args) override;
  void RecvAsync(const TensorKey& key, const RecvArgs& args, DoneFn done) override;
  using Rendezvous::RecvAsync;
  void RecvManyAsync(absl::Span<const TensorKey> keys, const RecvArgs& args,
                     ManyDoneFn done) override;
  // TensorSource::TakeHere of this step.
  bool TakeHere(TensorKey* key, Received* taken);
  // Undoes a receive that got `taken`: TensorSource::GiveBack. Not bound by the memory caps: what
  // was accepted once is not refused.
  void GiveBack(const TensorKey& key, Received taken);
  void StartAbort(const absl::Status& status) override;
  void WhenRoom(int64_t bytes, absl::AnyInvocable<void(absl::Status) &&> ready) override;

  absl::Status abort_cause() const;  // OK while not aborted.
  RendezvousCounters counters() const;
  // Adds the sends and receives that wait.
  void ListWaiting(int64_t step_id, WaitingItems* items) const;

 private:
  const Clock& clock() const override;

  MatchCore* const core_;  // Reference-counted: callbacks that still run keep it.
};

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_LOCAL_RENDEZVOUS_H_
