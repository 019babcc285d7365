#ifndef TRYST_CHANNEL_RDMA_FETCH_CHANNEL_H_
#define TRYST_CHANNEL_RDMA_FETCH_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/ops/back_off.h"
#include "channel/ops/fetch_ops.h"
#include "channel/ops/peer_words.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/rdma/fetch_op.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/trace/trace.h"

namespace tryst {

struct FetchChannelOptions {
  LinkOptions link;
  uint64_t landing_bytes = 256 << 10;  // Offered for a tensor of unknown size.
  std::string path;                    // As in Hello: "rdma/soft".
  std::string self;                    // Our worker name.
  uint64_t self_incarnation = 0;
  std::string peer;                  // The producer's worker name.
  std::function<void()> on_refused;  // The peer turned the path down; may call TakeWaiting().
  Trace* trace = nullptr;            // Of the poller; may be null.
  // For so long nothing may be heard through the path while somebody waits and the peer is
  // up; then it is left, and on_left gets all that waits, in order. 0: it is never left.
  int64_t give_up_ms = 0;
  std::function<void(std::vector<WaitingFetch>)> on_left;
  std::function<void()> on_usable;  // What Probe() asked for: the path works.
  // Gets a fetch whose tensor is larger than the landing memory and has no destination: another
  // path is to bring it. Null: it fails.
  std::function<void(WaitingFetch)> on_too_large;
  // The peer may be without a word for so long; then all that waits for it fails. 0: for ever.
  int64_t patience_ms = 60'000;
  // Fetches that may wait for the peer's Send without a slot. What one costs: FetchOp here, and
  // ServeTake at the peer.
  uint32_t max_parked = 1'000'000;
  uint64_t max_tensor_bytes = UINT64_MAX;
  uint64_t seed = 1;  // Of the jitter.
  int64_t hello_timeout_ms = 5000;
  int64_t backoff_ms = 10;  // First pause between attempts; doubles.
  int64_t backoff_ms_most = 1000;
  int64_t heartbeat_ms = 250;  // While something is asked for and nothing comes.
  // Then the link is taken for broken; if the peer's NIC answers all the same, after link.stall_ms.
  int64_t silence_ms = 900;
  // How long parts that are under way into the memory of a fetch that was given up may stay away.
  int64_t given_up_ms = 2000;
  int64_t retain_ms = 60'000;    // As in ServeChannelOptions.
  uint32_t standing = 16;        // Standing receives at one time, at most; also half the slots.
  int64_t standing_ms = 30'000;  // How long one waits for its fetch.
  uint32_t protocol_newest = kProtocolNewest;
};

struct FetchCounters : FetchCounts {
  uint64_t bytes = 0;
  uint64_t epochs = 0;  // Connections made.
  uint64_t breaks = 0;
  uint64_t digests_wrong = 0;
  uint64_t ghosts = 0;            // Words for a slot that had moved on.
  uint64_t standing = 0;          // Asked for ahead.
  uint64_t standing_claimed = 0;  // Of those, fetched.
  uint64_t standing_dropped = 0;  // Or given up, and back to the producer.

  FetchCounters& operator+=(const FetchCounters& other);
};

// The consumer's end of an rdma channel. Keeps a link to the producer while somebody
// waits: connects when first asked, replaces a broken link under a new epoch and asks
// again for what has not landed, for as long as there is anything to wait for.
//
// Owns every destination from the request until the producer's last word on its slot,
// or until the queue pair that could write it has drained.
class FetchChannel final : public FetchOps, private MessageLink::Owner {
 public:
  FetchChannel(QueueHub* hub, LandingPool* landings, Bootstrap* bootstrap,
               FetchChannelOptions options);
  ~FetchChannel() override;

  void Close(absl::Status why) override;
  bool Drained() const override;
  std::string Explain() const override;

  void RetryNow() override;
  void Probe() override;
  // Not in use: what was asked for ahead goes back to the producer, too. Its fetch will come by
  // another path and would wait for it.
  void AskAhead(bool in_use) override;
  void View(PathView* view) const override {
    view->state = state_text();
    view->why = std::string(connect_status_.message());
    view->since_ns = state_since_ns_;
    view->epoch = epoch_;
    view->note = landings_->ends_keys() ? "" : "keys of its landings last";
  }
  // Landing room came back: the fetch that waits for it longest takes some. False: none
  // waits, or it was not enough.
  bool TakeRoom();
  bool waits_for_room() const { return !room_line_.empty(); }
  // Gives up one of the standing receives, if there are any: their room is needed.
  void DropOneStanding();
  const FetchCounters& counters() const { return counters_; }
  // Of the landing memory: all that peers may write for us, and of that what waits for a Send.
  void AddLent(uint64_t* lent_bytes, uint64_t* waiting_bytes) const;
  bool connected() const { return state_ == State::kOpen; }
  const char* state_text() const;
  int64_t state_since_ns() const { return state_since_ns_; }
  uint64_t epoch() const { return epoch_; }
  size_t waiting() const { return pool_.live() - standing_; }

 private:
  // What the connection waits for.
  enum class State : uint8_t {
    kIdle,      // For a first fetch.
    kHello,     // For the peer's answer.
    kOpen,      // For nothing.
    kDraining,  // For works of a broken link to come back.
    kBackoff,   // For the pause before the next attempt.
    kFarewell,  // For the answer to our farewell.
    kClosed,
  };
  // What is known of a key's tensors.
  struct Habit {
    TensorKey key;
    uint64_t bytes_last = 0;  // What it was last time; 0: not seen.
    // Of recurring fetches.
    int64_t step_last = 0;
    uint64_t stride = 0;    // From the step before it.
    uint32_t regular = 0;   // How often the stride has been the same.
    wire::TensorMeta like;  // What it was last time; no bytes: not known.
  };
  using HelloAnswer = void (FetchChannel::*)(uint64_t epoch, absl::StatusOr<Hello> answer);

  // fetch_connection.cc
  void SetState(State state);
  void GoIdle();
  void Connect();
  void SendHello(const Hello& hello, HelloAnswer on_answer);
  void OnHelloAnswer(uint64_t epoch, absl::StatusOr<Hello> answer);
  absl::Status UseAnswer(const Hello& answer);
  void RetryLater(const absl::Status& why);
  bool AskForLess(const absl::Status& refusal);
  void NoteWord();
  void ArmPatience();
  void OnPatienceOver();
  void EndAll(const absl::Status& why);
  void OnBackoffOver();
  void StartWatch();
  void OnHeartbeat();
  void OnBroken(const absl::Status& why) override;
  void OnDrained() override;
  void EndAsked(const absl::Status& why, uint64_t new_incarnation = 0);
  void ForgetLeaving();
  void ReplayAsked();

  // fetch_leaving.cc
  bool Unusable() const;
  void Leave();
  void OnFarewellAnswer(uint64_t epoch, absl::StatusOr<Hello> answer);
  std::vector<WaitingFetch> TakeAll();
  void MoveAway(RdmaFetchOp* op);
  void OnHeard();

  // fetch_sending.cc
  void OnFlush() override;
  void FlushSoon() override;
  bool HasRoom(const FetchOp&) override { return link_->message() != nullptr; }
  bool SendRequest(FetchOp* op, FetchKey* key, bool may_park) override;
  bool SendCancel(const FetchOp& op) override;
  bool SendPark(const FetchOp& op) override;
  bool SendWaits(FetchOp* op, FetchKey* key) override;
  bool SendUnwanted(absl::Span<const uint64_t> tickets) override;
  bool SayOwn() override;
  size_t most_tickets() const override { return wire::kMaxTickets; }
  bool TellKey(FetchKey* key);
  Habit* HabitOf(const FetchKey& key);

  // fetch_destination.cc
  absl::Status MayFill(const Args& args) const override;
  bool MayBeWritten(const FetchOp& op) const override { return Own(op).region != nullptr; }
  void DropMemory(FetchOp* op) override;
  bool PassMemory(FetchOp* from, FetchOp* to) override;
  void ChooseDestination(RdmaFetchOp* op, uint64_t bytes_last);
  bool GiveDestination(RdmaFetchOp* op, uint64_t bytes, LandingPool::For what);
  void WaitForRoom(RdmaFetchOp* op);
  void EndWaitingCharge(RdmaFetchOp* op);

  // fetch_receiving.cc
  absl::Status OnRecord(const wire::Record& record) override;
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) override;
  void OnAccepted() override {}
  void OnWritesDone() override {}
  absl::Status Act(RdmaFetchOp* op, FetchAction action, const wire::Record& record);
  void NoteBytes(const RdmaFetchOp& op, uint64_t bytes);
  absl::Status OnTensor(RdmaFetchOp* op, const wire::Record& record);
  absl::Status OnLanded(RdmaFetchOp* op, const wire::Record& record);
  absl::Status OnNeedDestination(RdmaFetchOp* op, const wire::Record& record);
  absl::Status TakeLanded(RdmaFetchOp* op);
  void Complete(RdmaFetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void LeaveIfOver(RdmaFetchOp* op);
  void OnLeaves(FetchOp* op, FetchState from) override;

  // fetch_standing.cc
  FetchOp* Foreseen(int64_t step_id, const TensorKey& key) override;
  bool IsAhead(const FetchOp& op) const override { return Own(op).standing; }
  void OnEndAhead(FetchOp* op) override { EndStanding(Own(op), false); }
  void OnNoSlot() override { DropOneStanding(); }
  static RdmaFetchOp* StandingOf(const FetchKey& key);
  void EndStanding(RdmaFetchOp* op, bool claimed);
  void DropAllStanding(const absl::Status& why);
  void NoteStep(const TensorKey& key, int64_t step_id);
  void NoteTensor(const TensorKey& key, const Tensor& tensor);
  void ArmNext(const TensorKey& key);
  void TakeAhead(RdmaFetchOp* op);

  FetchOp* MakeOp() override { return &ops_.emplace_back(this); }
  static RdmaFetchOp* Own(FetchOp* op) { return static_cast<RdmaFetchOp*>(op); }
  static const RdmaFetchOp& Own(const FetchOp& op) { return static_cast<const RdmaFetchOp&>(op); }
  void OnBegun(FetchOp*) override { StartWatch(); }
  void OnWaits(FetchOp* op) override;
  std::string WhyLate(const FetchOp& op) const override;
  uint64_t BytesOf(const FetchOp& op) const override;

  // Constant after construction.
  QueueHub* const hub_;
  LandingPool* const landings_;
  Bootstrap* const bootstrap_;
  const FetchChannelOptions options_;
  const uint64_t writer_;  // Who writes our landings, as the pool knows it.

  // Poller thread only.
  State state_ = State::kIdle;
  std::unique_ptr<MessageLink> link_;
  uint64_t epoch_ = 0;
  uint64_t peer_incarnation_ = 0;  // 0: never met.
  uint64_t peer_session_ = 0;
  uint32_t version_ = 0;  // Of the protocol, in this epoch.
  int hellos_out_ = 0;
  bool tell_replayed_ = false;  // The replays are in the send line; this follows them.
  BackOff back_off_;
  int64_t unusable_since_ns_ = -1;  // Since when it fails without a word in between; -1: it works.
  bool leave_next_ = false;         // After this pause a farewell, not another hello.
  bool probing_ = false;            // It was connected to see whether it works.
  int64_t broken_since_ns_ = 0;
  int64_t waiting_since_ns_ = 0;  // Since when somebody waits.
  bool ping_due_ = false;
  MemberTimer<FetchChannel> backoff_timer_;
  MemberTimer<FetchChannel> heartbeat_timer_;
  MemberTimer<FetchChannel> patience_timer_;
  int64_t last_word_ns_ = 0;    // When the peer last said anything, by this path or to a hello.
  bool lost_ = false;           // It has been silent for patience_ms: who comes now waits for one
                                // attempt to connect, not for the next.
  bool asks_for_less_ = false;  // The peer grants no messages of our size.

  std::deque<RdmaFetchOp> ops_;  // All there ever were; addresses stay.
  bool asks_ahead_ = true;
  size_t standing_ = 0;                                 // Nobody waits for them.
  LinkedLine<FetchOp> room_line_{&FetchOp::wait_link};  // kWaitingRoom.
  std::vector<Habit> habits_;                           // By the key's number.
  FetchCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_CHANNEL_H_
