#ifndef TRYST_CHANNEL_SHM_SERVE_REQUESTS_H_
#define TRYST_CHANNEL_SHM_SERVE_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "channel/ops/serve_slots.h"
#include "channel/shm/serve_answers.h"
#include "channel/shm/serve_link.h"
#include "channel/shm/wire.h"
#include "channel/trace/live_ops.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// The cells of one link as ServeSlots needs them: what the consumer says in its own, and what it
// accepts by reading ours. Poller thread only.
class ShmRequests final : private ServeWire {
 public:
  // `link` and `source` outlive it. `on_idle`: idle() has become true.
  ShmRequests(ShmServeLink* link, TensorSource* source, const std::string& consumer,
              std::function<void()> on_idle);

  void Open(uint64_t epoch);
  absl::Status OnCell(const shm_wire::RequestCell& cell);
  // Lets go of what was accepted since. False: nothing. kDataLoss: it was not sent.
  absl::StatusOr<bool> ReleaseAccepted();
  // Nobody wakes us to say that a tensor was accepted: how long to sleep at most until the next
  // look. A consumer that takes its time is asked ever less often. 0: nothing is to be accepted.
  int64_t LookAgainNs();
  bool CopySome() { return answers_.CopySome(); }
  // What waits for room in the ring.
  void SayWaiting();
  bool waits_for_room() const { return answers_.any_wait() || has_words(); }
  void SayWords() { (void)slots_.SayWords(); }

  // The link ends: what was not answered goes back.
  void GiveUpUnanswered();
  // What was answered: as the consumer has written down, or all that it would have read out of
  // our memory goes back, or all is accepted.
  void SettleByWord();
  void GiveUpPulled();
  void ReleaseAnswered();
  bool any_answered() const;    // Of the slots, any that is not free.
  bool any_unanswered() const;  // Is the consumer still to be told of any?
  bool idle() const { return slots_.takes_idle(); }
  size_t told_keys() const { return slots_.told_keys(); }

  std::string Explain() const { return slots_.Explain("; ", "; "); }  // "; 3 wait for ..."
  void ListOps(LiveOps* ops) const { slots_.ListOps(ops); }

 private:
  bool has_words() const { return slots_.has_words(); }
  absl::Status OnKeyText(const uint8_t* text, size_t bytes);
  absl::Status OnRequest(const shm_wire::RequestCell& cell);
  absl::Status OnPark(const shm_wire::RequestCell& cell);
  absl::Status OnUnwanted(const shm_wire::RequestCell& cell);

  void Answer(ServeOp* op) override { answers_.Answer(op); }
  void Forget(ServeOp* op) override { answers_.Forget(op); }
  bool SayWord(bool is_parked, uint16_t slot, uint32_t generation) override;
  bool SayHere(absl::Span<const uint64_t> tickets) override;
  void FlushSoon() override { link_->FlushSoon(); }
  void OnTakesIdle() override { on_idle_(); }

  ShmServeLink* const link_;
  const std::function<void()> on_idle_;
  std::string key_text_;  // Of which more cells are to come.
  uint32_t key_id_ = 0;
  size_t key_bytes_ = 0;
  int64_t accepted_checked_ns_ = 0;
  int64_t accepted_pause_ns_ = 0;
  ServeSlots slots_;
  ShmAnswers answers_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_REQUESTS_H_
