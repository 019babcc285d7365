#ifndef TRYST_CHANNEL_OPS_SERVE_SLOTS_H_
#define TRYST_CHANNEL_OPS_SERVE_SLOTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "channel/ops/limits.h"
#include "channel/ops/run_wire.h"
#include "channel/ops/serve_op.h"
#include "channel/ops/serve_table.h"
#include "channel/ops/slot_array.h"
#include "channel/ops/slot_watch.h"
#include "channel/ops/slot_words.h"
#include "channel/ops/takes.h"
#include "channel/ops/told_keys.h"
#include "channel/poller/poller.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

// What carries the answers of ServeSlots, which calls it.
class ServeWire {
 public:
  virtual ~ServeWire() = default;
  // The outcome of `op` is here, and the consumer waits for it: answers it now, or when there is
  // room. It calls Said() or one of its neighbours then.
  virtual void Answer(ServeOp* op) = 0;
  // `op` ends, and is in its last state still. The wire lets go of what it keeps for it. It may
  // move the tensor away if that is still read.
  virtual void Forget(ServeOp* op) = 0;
  // The bytes of a tensor that was accepted may be let go, after the answers of this turn.
  virtual void Retire(StorageRef* /*storage*/) {}
  // Whether GONE of `op` must wait, because bytes of it are on their way that it could overtake. If
  // so, the wire says it later.
  virtual bool SaysGoneLater(const ServeOp& /*op*/) { return false; }
  // Whether the answer of `op`, which was sent, comes to the consumer even if the link ends now. If
  // not, the wire sees to it that this is true soon.
  virtual bool Arrives(const ServeOp& /*op*/) { return true; }
  // The most bytes that the answer of a run may have, and a tensor of bytes for one.
  virtual uint64_t most_run_bytes() const { return kRunBytes; }
  virtual Tensor MakeRunTensor(uint64_t bytes);
  virtual size_t tickets_a_word() const = 0;  // That fit into one HERE.
  // Says a word of a slot, or HERE; false: there is no room.
  virtual bool SayWord(bool is_parked, uint16_t slot, uint32_t generation) = 0;
  virtual bool SayHere(absl::Span<const uint64_t> tickets) = 0;
  // Has SayWords() called at the end of this turn.
  virtual void FlushSoon() = 0;
};

struct ServeSlotsOptions {
  std::string consumer;
  uint32_t max_parked = 0;  // Requests of the consumer that may wait without a slot.
  // Bounds of the keys that it names: how many, the bytes of one, and of all.
  uint32_t max_keys = limits::kMaxKeys;
  size_t max_key_bytes = limits::kMaxKeyBytes;
  uint64_t max_keys_bytes = limits::kMaxKeysBytes;
  Trace* trace = nullptr;         // The poller's; may be null.
  SlotWatch* watch = nullptr;     // May be null.
  const void* watched = nullptr;  // The end that the watch is told of.
  std::function<void()> on_takes_idle;
};

struct ServeRequest {
  uint16_t slot = 0;
  uint16_t generation = 0;
  uint32_t key = 0;    // Its number.
  bool again = false;  // A replay, or asked for once more because of its digest.
  bool has_destination = false;
  bool may_park = false;  // It need not keep its slot while it waits for its Send.
  int64_t step = 0;
  uint64_t ticket = 0;  // 0: none.
};

// The serving side of a channel, whatever carries it: the slots of one consumer, from its requests
// to its acceptances. Takes each tensor from the local rendezvous once, and keeps it until it was
// accepted or is given back. docs/STATES.md has the table that it follows. Poller thread only.
class ServeSlots final : private TakesUser {
 public:
  // The arguments outlive it.
  ServeSlots(Poller* poller, TensorSource* source, ServeSlotsOptions options,
             ServeCounters* counters);

  // From now on answers go by `wire`, which is of this path and outlives this, or its use.
  // REQUIRES: nothing is connected.
  void UseWire(ServeWire* wire, const std::string& path);
  // So many slots. The first time, and whenever `size` is the same.
  void Make(size_t size);
  bool made() const { return !ops_.empty(); }
  size_t size() const { return ops_.size(); }
  ServeOp* at(size_t slot) { return &ops_[slot]; }
  const ServeOp* begin() const { return ops_.begin(); }
  const ServeOp* end() const { return ops_.end(); }
  size_t used() const { return used_; }  // From here on no slot has ever been used.

  // A connection begins. What is not requested again over it, is not answered.
  void Connect(uint64_t epoch);
  void Disconnect();
  // By which both ends name their operations in traces.
  void set_trace_number(uint64_t number) { trace_number_ = number; }

  // ---- The consumer's words. kDataLoss: it broke the protocol. ----
  absl::Status MayHearMore() const { return words_.MayHearMore(ops_.size()); }
  absl::Status OnKey(uint32_t number, absl::string_view text, bool is_run = false) {
    return is_run ? keys_.TellRun(number, text) : keys_.Tell(number, text);
  }
  absl::Status OnRequest(const ServeRequest& request);
  absl::Status OnCancel(uint16_t slot, uint32_t generation);
  absl::Status OnPark(uint16_t slot, uint32_t generation, uint64_t ticket);
  absl::Status OnWaits(uint64_t ticket, int64_t step, uint32_t key);
  void OnUnwanted(absl::Span<const uint64_t> tickets);
  absl::Status OnRead(uint16_t slot, uint32_t generation, bool failed);
  // It has repeated all requests that it still wants; the others it has received or given up.
  // `unnamed`: what that says of what was sent, kUnnamed or kNotAccepted.
  void OnReplayed(ServeEvent unnamed);
  void OnAccepted(ServeOp* op) { End(op, ServeEvent::kAccepted); }

  // ---- What the wire has done with an answer ----
  void Said(ServeOp* op) { Advance(op, ServeEvent::kSay, WaitsFor::kAcceptance); }
  void AskedRoom(ServeOp* op) { Advance(op, ServeEvent::kAskRoom, WaitsFor::kDestination); }
  void Lent(ServeOp* op) { Advance(op, ServeEvent::kLend, WaitsFor::kAcceptance); }
  void Stages(ServeOp* op) { Advance(op, ServeEvent::kStage, WaitsFor::kCopy); }
  void Staged(ServeOp* op) { Advance(op, ServeEvent::kStaged, WaitsFor::kCopy); }
  void SendsParts(ServeOp* op) { Advance(op, ServeEvent::kPart, WaitsFor::kWireRoom); }
  // It cannot be sent: its tensor goes back, and the consumer is to get an error. False: whoever
  // got the tensor has ended `op`.
  ABSL_MUST_USE_RESULT bool FailTaken(ServeOp* op, const absl::Status& why);

  // Says which slots are parked or free, and which tickets have their outcome; false: there was no
  // room for all. Every turn asks.
  bool SayWords() { return !has_words() || SayAllWords(); }
  bool has_slot_words() const { return !words_.empty(); }
  bool has_words() const { return !words_.empty() || takes_.has_here(); }
  void SayGone(uint16_t slot, uint32_t generation) { words_.Gone(slot, generation); }

  // ---- The end of a link, or of all ----
  // The link by which it was being sent is over: it is here, to be asked for again.
  void Unlinked(ServeOp* op) { Advance(op, ServeEvent::kUnlinked, WaitsFor::kConsumer); }
  // Takes first: what is given back must not be met by another of them.
  void DropTakes();
  // Ends those that are not free and that `which` chooses.
  template <typename Which>
  void EndThose(ServeEvent event, Which which) {
    for (ServeOp& op : ops_) {
      if (op.state != ServeState::kFree && which(op)) End(&op, event);
    }
  }
  void EndAll(ServeEvent event) {
    EndThose(event, [](const ServeOp&) { return true; });
  }
  void End(ServeOp* op, ServeEvent event);

  bool takes_idle() const { return takes_.idle(); }
  size_t told_keys() const { return keys_.size(); }
  // How many tensors the end of the link would take away from the consumer, which waits for them.
  // What was sent counts until it arrives, and not until it is accepted: who asked ahead may never
  // do that. What waits for a local Send does not count; nor does what a consumer without a link
  // may come back for.
  size_t Coming() const;
  // Whether the consumer has been sent the answer of `op`.
  static bool Answered(const ServeOp& op) {
    return op.state == ServeState::kSent || op.state == ServeState::kPulled;
  }
  std::string Explain(absl::string_view before, absl::string_view between) const;
  void ListOps(LiveOps* ops) const;

 private:
  // What is left of an answer when its slot is free.
  struct Former {
    bool was = false;
    absl::StatusCode code = absl::StatusCode::kOk;
    uint64_t bytes = 0;
    int64_t step = 0;
    TensorKey key;
    TraceSpan span;
    StorageRef storage;
    ServeRun* run = nullptr;
  };

  static void Enter(ServeOp* op, const ServeRow& row) { op->state = row.next; }
  // Every pull passes here some times.
  const ServeRow* Hear(const ServeOp& op, ServeEvent event) const {
    const ServeRow* const row = FindServeRow(op.state, event);
    if (ABSL_PREDICT_FALSE(options_.watch != nullptr) && row != nullptr) {
      options_.watch->OnServeEvent(options_.watched, op.slot, op.state, event);
    }
    return row;
  }
  // What we do, for which there must be a row.
  const ServeRow& Do(const ServeOp& op, ServeEvent event) const {
    const ServeRow* const row = Hear(op, event);
    if (ABSL_PREDICT_FALSE(row == nullptr)) HasNoRow(op, event);
    return *row;
  }
  [[noreturn]] static void HasNoRow(const ServeOp& op, ServeEvent event);
  void Advance(ServeOp* op, ServeEvent event, WaitsFor what) {
    Enter(op, Do(*op, event));
    op->span.Enter(what, poller_->now_ns());
  }
  ServeEvent EventOf(const ServeOp& op, const ServeRequest& request) const {
    // A generation is newer if it is less than half of the number range ahead.
    const auto ahead = static_cast<int16_t>(request.generation - op.generation);
    if (ABSL_PREDICT_FALSE(ahead <= 0)) return EventOfOld(ahead == 0, request);
    // If this epoch did not repeat the request that the slot holds, the consumer had given it up:
    // its CANCEL, or the answer to that, was lost with the earlier connection.
    return op.asked_epoch == epoch_ ? ServeEvent::kRequest : ServeEvent::kRequestAnew;
  }
  static ServeEvent EventOfOld(bool is_same, const ServeRequest& request);
  absl::Status OnSlot(uint16_t slot, const char* does, ServeOp** op);
  void Finish(ServeOp* op, const ServeRow& row);
  void TakeFormer(ServeOp* op, bool goes_back, Former* former);
  ServeRun* NewRun(size_t keys);
  void Free(ServeRun* run);
  void EndTrace(const Former& former) {
    if (track_ != nullptr) TraceFormer(former);
  }
  void TraceFormer(const Former& former);
  bool SayAllWords();
  void StartTake(ServeOp* op, const ServeRequest& request, ToldKey* known);
  void TakeRun(ServeOp* op, const ToldKey& known);
  bool TakeOfRun(ServeOp* op, ToldKey* known, uint64_t room, std::vector<ServeRun::Item>* misfits);
  void GiveBack(int64_t step, const TensorKey& key, Received taken, ServeRun* run);
  void GiveBack(int64_t step, ServeRun::Item* item);
  void Park(ServeOp* op, uint64_t ticket);
  void OnTakeEnded(TakingOp* base, ServeTake* take) override;
  void KeepOutcome(ServeOp* op, Received&& taken);
  // It has the outcome of its take.
  void OnOutcome(ServeOp* op) {
    Advance(op, ServeEvent::kOutcome, WaitsFor::kWireRoom);
    AnswerIfAsked(op);
  }
  // The consumer may have given it up, and an answer that crossed the replay would be requested,
  // and sent, twice.
  void AnswerIfAsked(ServeOp* op) {
    if (connected_ && op->asked_epoch == epoch_) return wire_->Answer(op);
    NoteNotAsked();
  }
  static void NoteNotAsked();
  void OnHere() override { wire_->FlushSoon(); }
  void OnTakesIdle() override {
    if (options_.on_takes_idle) options_.on_takes_idle();
  }
  uint64_t IdOf(const ServeOp& op) const {
    return TraceId(trace_number_, uint64_t{op.slot} << 16 | op.generation, op.step);
  }

  Poller* const poller_;
  TensorSource* const source_;
  ServeWire* wire_ = nullptr;  // Null: there never was one, and nothing was requested.
  ServeSlotsOptions options_;
  std::string path_;
  ServeCounters* const counters_;
  TraceTrack* track_ = nullptr;  // Null without a trace.

  bool connected_ = false;
  uint64_t epoch_ = 0;  // The present connection's.
  uint64_t trace_number_ = 0;
  SlotArray<ServeOp> ops_;  // By slot.
  size_t used_ = 0;
  ToldKeys keys_;
  std::vector<std::unique_ptr<ServeRun>> runs_;  // All that were ever made.
  std::vector<ServeRun*> free_runs_;
  SlotWords words_;
  Takes takes_;
};

// The bytes of what `op` has met, in host memory if the tensor is.
struct ServePayload {
  const void* data = nullptr;
  uint64_t bytes = 0;
};
ServePayload StringsOf(ServeOp* op);
inline ServePayload PayloadOf(ServeOp* op) {
  if (ABSL_PREDICT_FALSE(op->tensor.dtype() == DType::kString)) return StringsOf(op);
  return {op->tensor.data(), op->tensor.bytes()};
}

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SERVE_SLOTS_H_
