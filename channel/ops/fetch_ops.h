#ifndef TRYST_CHANNEL_OPS_FETCH_OPS_H_
#define TRYST_CHANNEL_OPS_FETCH_OPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "channel/channel.h"
#include "channel/ops/connector.h"
#include "channel/ops/deliveries.h"
#include "channel/ops/fetch_ask.h"
#include "channel/ops/fetch_keys.h"
#include "channel/ops/fetch_link.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/fetch_parking.h"
#include "channel/ops/fetch_runs.h"
#include "channel/ops/fetch_slots.h"
#include "channel/ops/fetch_table.h"
#include "channel/ops/fetch_tickets.h"
#include "channel/ops/limits.h"
#include "channel/ops/link_kind.h"
#include "channel/ops/linked_line.h"
#include "channel/ops/paged_blocks.h"
#include "channel/ops/reuse_pool.h"
#include "channel/ops/run_wire.h"
#include "channel/ops/slot_lines.h"
#include "channel/ops/slot_watch.h"
#include "channel/ops/small_storage.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/trace/trace.h"

namespace tryst {

struct FetchOpsOptions : ConnectorOptions {
  Trace* trace = nullptr;  // The poller's; may be null.
  SlotWatch* watch = nullptr;
  size_t max_key_bytes = limits::kMaxKeyBytes;
  uint32_t max_keys = limits::kMaxKeys;  // That the peer remembers,
  // and what their texts may come to before numbers begin again.
  uint64_t max_keys_bytes = limits::kKeysLapBytes;
  uint32_t max_parked = 1'000'000;         // As FetchKind has it, over any kind.
  uint64_t max_tensor_bytes = UINT64_MAX;  // A tensor that its producer says is larger is refused.
  int64_t retain_ms = 60'000;              // How long the producer waits for us without a link.
  // How long fetches wait for a peer that does not answer, counted from its last sign of life.
  // 0: for ever.
  int64_t patience_ms = 60'000;
};

// The fetches from one peer, from Fetch() to `done`: slots and lines, the order of each key,
// cancels and deadlines, parking, replay, delivery. A FetchLink says how to ask, how to cancel, and
// what came (docs/decisions/0040-one-operation.md; the table is fetch_table.h).
//
// A fetch is what a caller wants, and an ask is what the peer was asked for (fetch_ask.h). All
// fetches of one key and step stand in the line of one ask. So one that is cancelled or late leaves
// the line, what was asked for goes to the next one, and no tensor goes back behind another.
//
// Parking: a slot is for a tensor on its way, not for one that nobody has sent yet. While fetches
// wait in line and every slot is held by a fetch that waits for a Send, those in the slots are
// parked: the peer keeps their takes, in their places, under tickets, and says when one has its
// outcome. Only then does it need a slot again.
class FetchOps : public Channel, public FetchOpOwner {
 public:
  void Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
             FetchedFn&& done) override;
  // One callback, and one delivery, for all. REQUIRES: args.destination is unset; args.destinations
  // is empty or has one for each key.
  bool FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                 ManyFetchedFn* done) override;
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void ListOps(LiveOps* ops) const override;
  bool Drained() const override;
  bool FetchesInCallbacks() const override { return kind_->fetches_in_callbacks; }
  size_t fetches_out() const override {
    return fetches_.live() + asks_.live() + (tickets_.any_unwanted() ? 1 : 0);
  }

  // ---- What happens to an ask: for the link ----
  using When = Deliveries::When;
  // The state that the table says, and what is to be done. CHECKs that there is an entry.
  ABSL_ATTRIBUTE_ALWAYS_INLINE FetchAction Advance(FetchAsk* ask, FetchEvent event) {
    const FetchRow* row = FindFetchRow(ask->state, event);
    if (row == nullptr) HasNoRow(*ask, event);
    Enter(ask, event, row->next);
    return row->action;
  }
  // Like Advance(), for a peer's word. Null: it has no place there; the link is to end.
  const FetchRow* Hear(FetchAsk* ask, FetchEvent event) {
    const FetchRow* row = FindFetchRow(ask->state, event);
    if (row != nullptr) Enter(ask, event, row->next);
    return row;
  }
  // Ends a fetch. If others wait in its line, the next one takes its place.
  void EndEarly(FetchOp* op, const absl::Status& why);
  // Gives up what was asked for, and ends the fetch in front; the next one is asked for anew.
  void EndAsk(FetchAsk* ask, const absl::Status& why);
  // The peer is to hear that it is given up; the caller in front is not told yet.
  void StartLeaving(FetchAsk* ask, const absl::Status& why);
  // The peer has nothing more to say of it, and this is the result of the fetch in front.
  void Finish(FetchAsk* ask, absl::Status&& status, Tensor&& tensor, bool is_dead, When when);
  // As Finish(), of one that was given up: for the reason noted then.
  void FinishLeaving(FetchAsk* ask);
  ABSL_ATTRIBUTE_ALWAYS_INLINE FetchAsk* TakeAsk(FetchKey* key, int64_t step) {
    FetchAsk* ask = asks_.Take([this] { return link_->MakeAsk(); });
    keys_.Join(ask, key, step);
    return ask;
  }
  // The fast way of most tensors that lie inside a word: copies the bytes into the caller's memory,
  // which then is the tensor (TakeDestination). False: nothing has happened.
  bool FillDestination(const FetchAsk& ask, const TensorInside& inside);
  // Afterwards `tensor` is valid; or the caller cannot have it, and its ask has ended. kDataLoss:
  // it cannot be a tensor.
  absl::Status TakeInside(FetchAsk* ask, const TensorInside& inside, Tensor* tensor);
  // As TakeInside(), for the answer of a run, wherever it lies. Its tensors go to their callers
  // when the ask is finished with `tensor`, which stands for them. REQUIRES: ask->of->is_run().
  absl::Status TakeRun(FetchAsk* ask, absl::string_view answer, Tensor* tensor);
  // Whether what the peer says the tensor is may be, and is what the caller wants.
  absl::Status MayTake(const FetchAsk& ask, DType dtype, const TensorShape& shape,
                       uint64_t bytes) const;
  // In the order in which they were asked for, which is the order of their turns at a key: those
  // in slots, and those that are parked.
  std::vector<FetchAsk*> Asked() const;

  // ---- Asking (fetch_asking.cc) ----
  // False: there was no room for all of it. Every turn asks.
  bool SayAll() {
    if (gathered_ != nullptr) StartGathered();
    asked_at_once_ = false;
    if (SomebodyWaits() || HasWords()) return SayWhatIsDue();
    return words_->SayOwn();
  }
  void SendSoon(FetchAsk* ask);  // What is due follows from its state.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void TakeSlot(FetchAsk* ask) {
    Advance(ask, FetchEvent::kSlot);
    slots_.Take(ask);
    if (ask->order == 0) ask->order = next_order_++;
  }
  bool SomebodyWaits() const { return lines_.any(); }
  bool HasWords() const { return tell_replayed_ || !send_line_.empty() || tickets_.any_unwanted(); }
  // The peer is to keep its take while it waits, and the slot is to be another's. REQUIRES: a fetch
  // wants it.
  void AskToPark(FetchAsk* ask);
  bool tickets_full() const {
    return tickets_.parked() >= std::min(kind_->max_parked, ops_options_.max_parked);
  }
  absl::Status OnParked(FetchAsk* ask);  // The peer says so. kDataLoss: it must not.
  void OnHere(absl::Span<const uint64_t> tickets);
  void DropTicket(FetchAsk* ask);
  FetchCounters* counters() { return &counters_; }
  const FetchOpsOptions& options() const { return ops_options_; }
  const std::string& path() const { return kind_->path; }  // That its links are of now.
  // No connection any more: nothing is to be said over it.
  void ForgetWords();
  const FetchSlots& slots() const { return slots_; }
  const SlotLines& lines() const { return lines_; }
  FetchKeys* keys() { return &keys_; }
  Poller* poller() const { return poller_; }
  int64_t now_ns() const { return poller_->now_ns(); }
  bool open() const { return connector_.open(); }  // There is a connection.

 protected:
  FetchOps(Poller* poller, Bootstrap* bootstrap, FetchOpsOptions options, const FetchKind* kind);
  ~FetchOps() override;
  // From now on links are of this kind, and `link` makes them: an ask of its takes the place of
  // each. REQUIRES: there is no link, and nothing of one can land any more.
  void UseLink(const FetchKind* kind, std::unique_ptr<FetchLink> link);

  virtual void OnConnectTimer() = 0;  // The connector's timer is over.
  // The fetch in front has its result; the ask is given up, and its slot not free yet.
  void ReportFront(FetchAsk* ask, const absl::Status& why);
  // Takes out all fetches that wait in line, in their order, for another channel.
  std::vector<WaitingFetch> TakeWaiting() override;
  void EndAll(const absl::Status& why);
  // The connection is over: their keys are asked for one by one over the next.
  void EndRuns();
  ABSL_ATTRIBUTE_ALWAYS_INLINE void FreeSlot(FetchAsk* ask) {
    const uint16_t slot = ask->slot;
    slots_.Free(ask);
    if (ops_options_.watch != nullptr && closed_.ok()) ops_options_.watch->OnSlotFreed(this, slot);
    if (SomebodyWaits() && open()) words_->FlushSoon();
  }
  std::string ExplainOut() const;  // How many are out, by state.

  // Only the poller thread uses this object.
  Poller* const poller_;
  const FetchOpsOptions ops_options_;
  const FetchKind* kind_;
  TraceTrack* track_ = nullptr;      // Null without a trace.
  std::unique_ptr<FetchLink> link_;  // UseLink() sets both.
  FetchWords* words_ = nullptr;
  bool tell_replayed_ = false;  // All replays are in the send line; REPLAYED must follow them.
  FetchCounters counters_;
  Connector connector_;
  absl::Status closed_;  // Not OK: closed for this.
  ReusePool<FetchOp> fetches_;
  ReusePool<FetchAsk> asks_;
  FetchSlots slots_;
  FetchKeys keys_;
  FetchRuns runs_;
  FetchRun* gathered_ = nullptr;  // Fetches of this turn, to be asked for at its end.
  bool asked_at_once_ = false;    // Something was asked for in this turn.
  SlotLines lines_;
  LinkedLine<FetchAsk> send_line_{&FetchAsk::send_link};  // With something to say.
  FetchTickets tickets_;
  FetchParking parking_{this};
  Deliveries deliveries_;

 private:
  [[noreturn]] static void HasNoRow(const FetchAsk& ask, FetchEvent event);
  void Enter(FetchAsk* ask, FetchEvent event, FetchState next) {
    const FetchState from = std::exchange(ask->state, next);
    if (ops_options_.watch != nullptr && closed_.ok()) {
      ops_options_.watch->OnFetchEvent(this, *ask, from, event);
    }
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE FetchOp* TakeOp(int64_t step, const TensorKey& key) {
    FetchOp* op = fetches_.Take([this] { return fetch_blocks_.Make(this); });
    op->step = step;
    op->key = key;
    return op;
  }
  void Start(FetchOp* op);
  bool StartWatching(FetchOp* op, const RecvArgs& args);
  void StartOf(FetchJoin* join, size_t place, int64_t step, const TensorKey& key,
               const Tensor& destination);
  bool MayBegin(const FetchOp& op) const;
  absl::Status WhyNotBegin(const FetchOp& op) const;
  void LineUp(FetchOp* op, bool now);
  bool JoinLine(FetchOp* op, const FetchKey& key);
  bool AskFor(FetchAsk* ask);
  bool SayWhatIsDue();
  bool SayOf(FetchAsk* ask);
  bool SendRequestOf(FetchAsk* ask);
  bool HandOver(FetchAsk* ask);
  static FetchOp* TakeFront(FetchAsk* ask) {
    FetchOp* const op = std::exchange(ask->front, nullptr);
    if (op != nullptr) op->ask = nullptr;
    return op;
  }
  void StopWatching(FetchOp* op);
  void LastWord(FetchAsk* ask);
  void BeginAnew(FetchAsk* ask);
  void NoteResult(FetchOp* op, const absl::Status& status, const Tensor& tensor);
  void ReportInPlace(FetchOp* op, absl::Status&& status, Tensor&& tensor, bool is_dead);
  void Report(FetchOp* op, absl::Status&& status, Tensor&& tensor, bool is_dead, When when);
  absl::Status MayTake(const Tensor& wanted, DType dtype, const TensorShape& shape,
                       uint64_t bytes) const;
  absl::Status Copy(const Tensor& wanted, const TensorInside& inside, Tensor* tensor,
                    absl::Status* unwanted);
  void NoteInside(const TensorInside& inside) {
    ++counters_.in_message;
    counters_.bytes += inside.payload.size();
  }
  // By a loop: most have one or two, and a call of memcmp() costs more.
  static bool SameDims(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }
  // The fast way of most: into the caller's memory. False: nothing has happened.
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool Fill(const Tensor& wanted, const TensorInside& inside) {
    const uint64_t bytes = inside.payload.size();
    // Never a string tensor.
    if (!wanted.valid() || !wanted.on_host() || wanted.dtype() != inside.dtype ||
        inside.dtype == DType::kString || wanted.bytes() != bytes ||
        bytes > ops_options_.max_tensor_bytes || !SameDims(wanted.shape().dims(), inside.dims)) {
      return false;
    }
    if (bytes > 0) memcpy(wanted.mutable_data(), inside.payload.data(), bytes);
    return true;
  }
  bool TakeSmall(const Tensor& wanted, const TensorInside& inside, Tensor* tensor);

  // Runs of keys (fetch_running.cc).
  bool MayRun(const RecvArgs& args, size_t keys);
  bool MayRunWith(const FetchKey& key, const Tensor& destination) const;
  void StartRun(FetchRun* run);
  void StartApart(FetchRun* run);
  void StartPart(FetchRun* run, size_t index);
  void StartHeld(FetchRun* run);
  void LineUpAll(LinkedLine<FetchOp>* ops);
  bool Gather(FetchOp* op);
  void StartGathered() { StartRun(std::exchange(gathered_, nullptr)); }
  void LeaveRun(FetchOp* op, const absl::Status& why);
  void ReportRun(FetchRun* run, const absl::Status& status, When when);
  void EndRun(FetchOp* op, absl::Status&& status, When when);
  void EndStale(FetchAsk* ask);
  bool IsStale(const FetchAsk& ask) const {
    return ask.of->is_run() && ask.front != nullptr &&
           ask.front->run->numbers != keys_.numbers_lost();
  }
  void TakeOut(FetchAsk* ask, std::vector<WaitingFetch>* taken);
  void TakeOutOne(FetchOp* op, std::vector<WaitingFetch>* taken);
  std::string WhyLate(const FetchOp& op) const;
  void FreeIfDone(FetchOp* op);
  void WatchIdle();
  bool KeepsMuch() const {
    return fetches_.is_idle_and_large() || asks_.is_idle_and_large() ||
           (keys_.has_many() && IsIdle());
  }
  bool IsIdle() const { return fetches_.live() == 0 && asks_.live() == 0 && !HasWords(); }
  void GiveMemoryBack();
  void OnOpCancelled(FetchOp* op) override;
  void OnOpTimer(FetchOp* op) override;
  void OnOpDelivered(FetchOp* op) override;

  SmallStorage* const small_;  // Has a count of references, one of which is ours.
  PagedBlocks<FetchOp> fetch_blocks_;
  uint64_t next_order_ = 1;
  // Set when the last was freed and much is kept, so that the memory of a burst goes and that of
  // the next step's burst stays.
  MemberTimer<FetchOps> idle_timer_{this, &FetchOps::GiveMemoryBack};
  uint64_t fetches_then_ = 0;  // How many there had been when it was last set for the keys.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_OPS_H_
