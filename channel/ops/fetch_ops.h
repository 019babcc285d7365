#ifndef TRYST_CHANNEL_OPS_FETCH_OPS_H_
#define TRYST_CHANNEL_OPS_FETCH_OPS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "channel/channel.h"
#include "channel/ops/connector.h"
#include "channel/ops/deliveries.h"
#include "channel/ops/fetch_keys.h"
#include "channel/ops/fetch_op.h"
#include "channel/ops/fetch_parking.h"
#include "channel/ops/fetch_pool.h"
#include "channel/ops/fetch_slots.h"
#include "channel/ops/fetch_table.h"
#include "channel/ops/fetch_tickets.h"
#include "channel/ops/fetch_transport.h"
#include "channel/ops/fetch_turns.h"
#include "channel/ops/fetch_words.h"
#include "channel/ops/linked_line.h"
#include "channel/ops/slot_lines.h"
#include "channel/ops/slot_watch.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/trace/trace.h"

namespace tryst {

// What the fetches of every transport count.
struct FetchCounts {
  uint64_t fetches = 0;
  uint64_t ended_ok = 0;
  uint64_t ended_failed = 0;
  uint64_t cancels_sent = 0;
  uint64_t replays = 0;  // Asked again over another connection.
  uint64_t moved = 0;    // To another path, which counts them again.
  uint64_t parked = 0;   // Gave their slot to others while they waited for a Send.
};

struct FetchOpsOptions {
  ConnectorOptions connect;
  Trace* trace = nullptr;
  SlotWatch* watch = nullptr;
  size_t max_key_bytes = 0;
  uint32_t max_keys = 0;        // That the peer remembers,
  uint64_t max_keys_bytes = 0;  // and what their texts may come to before numbers begin again.
  uint32_t max_parked = 0;      // Fetches that may wait for the peer's Send without a slot.
  // How long the report of a cancel waits for the peer's last word, where the caller's memory does
  // not have to. 0: not at all.
  int64_t leave_ns = 0;
  uint64_t max_tensor_bytes = UINT64_MAX;  // A tensor that its producer says is larger is refused.
};

// The fetches of one channel from Fetch() to `done`: slots and lines, the order of each key,
// cancels and deadlines, parking, replay, delivery. A transport says how to ask, how to cancel, and
// what came (docs/decisions/0040-one-operation.md; the table is fetch_table.h).
//
// Of the fetches of one key and step one is asked for at a time; the others follow it. So a fetch
// that is cancelled or late can hand what it asked for to the next one, and no tensor goes back
// behind another.
//
// Parking: a slot is for a tensor on its way, not for one that nobody has sent yet. While fetches
// wait in line and every slot is held by a fetch that waits for a Send, those in the slots are
// parked: the peer keeps their takes, in their places, under tickets, and says when one has its
// outcome. Only then does it need a slot again.
class FetchOps : public Channel, public FetchOpOwner, protected FetchTransport {
 public:
  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn&& done) override;
  // One callback, and one delivery, for all. REQUIRES: args.destination is unset; args.destinations
  // is empty or has one for each key.
  bool FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                 ManyDoneFn* done) override;
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void ListOps(LiveOps* ops) const override;
  std::vector<WaitingFetch> TakeWaiting() override;
  bool Drained() const override;
  void View(PathView* view) const override { connector_.View(view); }

  // ---- What happens to an operation: for the transport ----
  using When = Deliveries::When;
  // The state that the table says, and what is to be done. CHECKs that there is an entry.
  FetchAction Advance(FetchOp* op, FetchEvent event) {
    const FetchRow* row = FindFetchRow(op->state, event);
    if (row == nullptr) HasNoRow(*op, event);
    Enter(op, event, row->next);
    return row->action;
  }
  // Like Advance(), for a peer's word. Null: it has no place there; the link is to end.
  const FetchRow* Hear(FetchOp* op, FetchEvent event) {
    const FetchRow* row = FindFetchRow(op->state, event);
    if (row != nullptr) Enter(op, event, row->next);
    return row;
  }
  void EndEarly(FetchOp* op, const absl::Status& why);
  // Ends one that the peer is to hear of; its caller is not told yet.
  void StartLeaving(FetchOp* op, const absl::Status& why);
  // The peer has nothing more to say of it. Before Report(), which may free what has nothing left
  // to come.
  void LastWord(FetchOp* op);
  void Report(FetchOp* op, absl::Status status, Tensor&& tensor, bool is_dead, When when);
  FetchOp* TakeOp();
  // Whether what the peer says the tensor is may be, and is what the caller wants.
  absl::Status MayTake(const FetchOp& op, DType dtype, const TensorShape& shape,
                       uint64_t bytes) const;
  // In the order in which they were asked for, which is the order of their turns at a key: those
  // in slots, and those that are parked.
  std::vector<FetchOp*> Asked() const;

  // ---- Asking (fetch_asking.cc) ----
  bool SayAll();  // False: there was no room for all of it.
  void SendSoon(FetchOp* op);
  void TakeSlot(FetchOp* op);
  bool SomebodyWaits() const { return lines_.any(); }
  bool HasWords() const { return !send_line_.empty() || tickets_.any_unwanted(); }
  // The peer is to keep its take while it waits, and the slot is to be another's.
  void AskToPark(FetchOp* op);
  bool tickets_full() const { return tickets_.parked() >= ops_options_.max_parked; }
  void OnParked(FetchOp* op, bool is_wanted);
  void OnHere(absl::Span<const uint64_t> tickets);
  void DropTicket(FetchOp* op);
  // No connection any more: nothing is to be said over it.
  void ForgetWords();
  const FetchSlots& slots() const { return slots_; }
  const SlotLines& lines() const { return lines_; }
  FetchKeys* keys() { return &keys_; }
  Poller* poller() const { return poller_; }
  int64_t now_ns() const { return poller_->now_ns(); }
  bool open() const { return connector_.open(); }  // There is a connection.

 protected:
  FetchOps(Poller* poller, Bootstrap* bootstrap, FetchOpsOptions options, FetchCounts* counts);
  ~FetchOps() override {
    if (idle_timer_.is_set()) poller_->CancelTimer(&idle_timer_);
    if (ops_options_.watch != nullptr) ops_options_.watch->OnEndGone(this);
  }

  void TakeOut(FetchOp* op, std::vector<WaitingFetch>* taken);
  std::string WhyLate(const FetchOp& op) const override;

  // Poller thread only, as all of it.
  Poller* const poller_;
  const FetchOpsOptions ops_options_;
  TraceTrack* const track_;      // Null without a trace.
  FetchWords* words_ = nullptr;  // The transport's, who sets it.
  Connector connector_;
  absl::Status closed_;  // Not OK: closed for this.
  FetchPool pool_;
  FetchSlots slots_;
  FetchKeys keys_;
  SlotLines lines_;
  LinkedLine<FetchOp> send_line_{&FetchOp::send_link};  // With something to say.
  FetchTickets tickets_;
  FetchParking parking_{this};
  Deliveries deliveries_;

 private:
  [[noreturn]] static void HasNoRow(const FetchOp& op, FetchEvent event);
  void Enter(FetchOp* op, FetchEvent event, FetchState next) {
    const FetchState from = std::exchange(op->state, next);
    if (ops_options_.watch != nullptr && closed_.ok()) {
      ops_options_.watch->OnFetchEvent(this, *op, from, event);
    }
  }
  void Start(FetchOp* op);
  bool AskNow(FetchOp* op);
  bool Ask(FetchOp* op);
  bool SayOf(FetchOp* op);
  bool SendRequestOf(FetchOp* op, FetchKey* key);
  void FreeSlot(FetchOp* op);
  bool BeginTurn(FetchOp* op, FetchKey* key);
  void AskFollower(FetchOp* op);
  bool HandOver(FetchOp* op);
  void EndByCaller(FetchOp* op, const absl::Status& why);
  void FreeIfDone(FetchOp* op);
  bool KeepsMuch() const { return pool_.is_idle_and_large() || (keys_.has_many() && IsIdle()); }
  bool IsIdle() const { return pool_.live() == 0 && !HasWords(); }
  void GiveMemoryBack();
  void OnOpCancelled(FetchOp* op) override;
  void OnOpTimer(FetchOp* op) override;
  void OnOpDelivered(FetchOp* op) override;

  FetchCounts* const counts_;
  uint64_t next_order_ = 1;
  FetchTurns turns_;
  // Set when the last op was freed and much is kept, so that the memory of a burst goes and that of
  // the next step's burst stays.
  MemberTimer<FetchOps> idle_timer_{this, &FetchOps::GiveMemoryBack};
  uint64_t fetches_then_ = 0;  // How many there had been when it was last set for the keys.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_FETCH_OPS_H_
