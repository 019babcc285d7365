#ifndef TRYST_CHANNEL_SHM_SERVE_REQUESTS_H_
#define TRYST_CHANNEL_SHM_SERVE_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/slot_array.h"
#include "channel/ops/slot_words.h"
#include "channel/ops/takes.h"
#include "channel/ops/told_keys.h"
#include "channel/shm/serve_answers.h"
#include "channel/shm/serve_link.h"
#include "channel/shm/serve_op.h"
#include "channel/shm/wire.h"
#include "channel/trace/live_ops.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// What the consumer of one link asks for: its words, the takes, and the slots until their tensors
// were accepted or went back. Poller thread only.
class ShmRequests final : private TakesUser, private ShmAnswers::User {
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
  void SayWords();

  // The link ends. Takes first: what is given back must not be met by another of them.
  void GiveUpUnanswered();
  // What was answered: as the consumer has written down, or all that it would have read out of
  // our memory goes back, or all is accepted.
  void SettleByWord();
  void GiveUpPulled();
  void ReleaseAnswered();
  bool any_answered() const;    // Of the slots, any that is not free.
  bool any_unanswered() const;  // Is the consumer still to be told of any?
  bool idle() const { return takes_.idle(); }
  size_t told_keys() const { return keys_.size(); }

  std::string Explain() const;  // "; 3 for the local Send"
  void ListOps(LiveOps* ops) const;

 private:
  bool has_words() const { return !words_.empty() || takes_.has_here(); }
  absl::Status OnKeyText(const uint8_t* text, size_t bytes);
  absl::Status OnRequest(const shm_wire::RequestCell& cell);
  absl::Status OnCancel(const shm_wire::RequestCell& cell);
  absl::Status OnPulled(const shm_wire::RequestCell& cell);
  absl::Status OnRefused(const shm_wire::RequestCell& cell);
  // Without a slot.
  absl::Status OnPark(const shm_wire::RequestCell& cell);
  absl::Status OnUnwanted(const shm_wire::RequestCell& cell);
  void Park(ShmServeOp* op, uint64_t ticket);
  void OnHere() override { link_->FlushSoon(); }

  // Taking.
  bool TakeHere(ShmServeOp* op, ToldKey* known);
  void OnTakeEnded(TakingOp* base, ServeTake* take) override;
  void OnTakesIdle() override { on_idle_(); }
  void SetReady(ShmServeOp* op);
  // Nobody gets it here: it goes back to its place, and the slot is free.
  void GiveUp(ShmServeOp* op);
  void OnSent(ShmServeOp* op) override;
  void OnFailureSent(ShmServeOp* op) override { Release(op); }
  void Release(ShmServeOp* op);
  // What is left of an answer when its slot is free.
  struct Former {
    bool was = false;
    absl::StatusCode code = absl::StatusCode::kOk;
    uint64_t bytes = 0;
    int64_t step = 0;
    TensorKey key;
    TraceSpan span;
    Tensor tensor;
  };
  void TakeFormer(ShmServeOp* op, Former* former);
  absl::StatusOr<ShmServeOp*> SlotFor(const shm_wire::RequestCell& cell, Former* former);
  void EndTrace(const Former& former);
  void Free(ShmServeOp* op);
  uint64_t IdOf(const ShmServeOp& op) const {
    return TraceId(link_->number, uint64_t{op.slot} << 32 | op.request.generation, op.request.step);
  }

  ShmServeLink* const link_;
  TensorSource* const source_;
  const std::string consumer_;
  const std::function<void()> on_idle_;
  TraceTrack* const track_;  // Null without a trace.

  ToldKeys keys_;
  Taken taken_;           // Empty between two takes.
  std::string key_text_;  // Of which more cells are to come.
  uint32_t key_id_ = 0;
  size_t key_bytes_ = 0;
  SlotArray<ShmServeOp> ops_;  // By slot.
  struct SentCell {
    ShmServeOp* op;
    uint32_t generation;
    uint32_t cell;  // After which it counts as accepted.
  };
  static bool MovedOn(const SentCell& sent) {
    return sent.op->state != ServeState::kSent || sent.op->request.generation != sent.generation;
  }
  void ForgetMovedOn();
  RingLine<SentCell> sent_line_;  // kSent, and some whose slot has moved on.
  int64_t accepted_checked_ns_ = 0;
  int64_t accepted_pause_ns_ = 0;
  SlotWords words_;
  ShmAnswers answers_;
  Takes takes_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_REQUESTS_H_
