#ifndef TRYST_CHANNEL_RDMA_FETCH_CHANNEL_H_
#define TRYST_CHANNEL_RDMA_FETCH_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/ops/back_off.h"
#include "channel/ops/peer_words.h"
#include "channel/poller.h"
#include "channel/rdma/fetch_op.h"
#include "channel/rdma/landing_pool.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/queue_hub.h"
#include "channel/trace.h"

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
  uint64_t seed = 1;  // Of the jitter.
  int64_t hello_timeout_ms = 5000;
  int64_t backoff_ms = 10;  // First pause between attempts; doubles.
  int64_t backoff_ms_most = 1000;
  int64_t heartbeat_ms = 250;  // While something is asked for and nothing comes.
  // Then the link is taken for broken; if the peer's NIC answers all the same, after link.stall_ms.
  int64_t silence_ms = 900;
  int64_t retain_ms = 60'000;    // As in ServeChannelOptions.
  uint32_t standing = 16;        // Standing receives at one time, at most; also half the slots.
  int64_t standing_ms = 30'000;  // How long one waits for its fetch.
  uint32_t protocol_newest = kProtocolNewest;
};

struct FetchCounters {
  uint64_t fetches = 0;
  uint64_t ended_ok = 0;
  uint64_t ended_failed = 0;
  uint64_t bytes = 0;
  uint64_t cancels_sent = 0;
  uint64_t epochs = 0;  // Connections made.
  uint64_t breaks = 0;
  uint64_t replays = 0;
  uint64_t digests_wrong = 0;
  uint64_t ghosts = 0;            // Words for a slot that had moved on.
  uint64_t moved = 0;             // To another path, which counts them again.
  uint64_t standing = 0;          // Asked for ahead.
  uint64_t standing_claimed = 0;  // Of those, fetched.
  uint64_t standing_dropped = 0;  // Or given up, and back to the producer.
  uint64_t parked = 0;            // Gave their slot to others while they waited for a Send.

  FetchCounters& operator+=(const FetchCounters& other);
};

// The consumer's end of an rdma channel. Keeps a link to the producer while somebody
// waits: connects when first asked, replaces a broken link under a new epoch and asks
// again for what has not landed, for as long as there is anything to wait for.
//
// Owns every destination from the request until the producer's last word on its slot,
// or until the queue pair that could write it has drained.
class FetchChannel final : public Channel,
                           public FetchOpOwner,
                           private MessageLink::Owner,
                           private PollerFlush {
 public:
  FetchChannel(QueueHub* hub, LandingPool* landings, Bootstrap* bootstrap,
               FetchChannelOptions options);
  ~FetchChannel() override;

  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) override;
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void Close(absl::Status why) override;
  bool Drained() const override;
  std::string Explain() const override;
  void ListOps(LiveOps* ops) const override;

  // Takes out all that the peer has not been asked for: another channel is to fetch it.
  std::vector<WaitingFetch> TakeWaiting();
  // Something has changed for the better: ends a pause before the next attempt.
  void RetryNow();
  // Sees whether the path works, although nobody waits: on_usable, or nothing.
  void Probe();
  // Whether this path is the one in use. If not, nothing is asked for ahead, and what has been
  // goes back to the producer: its fetch will come by another path and would wait for it.
  void AskAhead(bool in_use);
  // Landing room came back: the fetch that waits for it longest takes some. False: none
  // waits, or it was not enough.
  bool TakeRoom();
  bool waits_for_room() const { return !room_line_.empty(); }
  // Gives up one of the standing receives, if there are any: their room is needed.
  void DropOneStanding();
  const FetchCounters& counters() const { return counters_; }
  // The cause of the last failed attempt to connect; OK while there is a link.
  const absl::Status& connect_status() const { return connect_status_; }
  bool connected() const { return state_ == State::kOpen; }
  const char* state_text() const;
  int64_t state_since_ns() const { return state_since_ns_; }
  uint64_t epoch() const { return epoch_; }
  size_t waiting() const { return live_ - standing_; }

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
  using AskedOps = absl::InlinedVector<FetchOp*, 2>;
  struct KeyEntry {
    uint32_t id = 0;
    uint32_t epoch = 0;       // In which the peer was told the id.
    uint64_t bytes_last = 0;  // What it was last time; 0: not seen.
    // Of recurring fetches.
    int64_t step_last = 0;
    uint64_t stride = 0;    // From the step before it.
    uint32_t regular = 0;   // How often the stride has been the same.
    wire::TensorMeta like;  // What it was last time; no bytes: not known.
    FetchOp* standing = nullptr;
    // What was asked for of it, one fetch for each step; some may have ended since.
    AskedOps asked;
  };
  // A timer that calls a member.
  struct MemberTimer final : PollerTimer {
    using Method = void (FetchChannel::*)();
    MemberTimer(FetchChannel* channel, Method method) : channel(channel), method(method) {}
    void OnTimer() override { (channel->*method)(); }
    FetchChannel* const channel;
    const Method method;
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
  std::vector<FetchOp*> InOrder() const;
  static void SortByOrder(std::vector<FetchOp*>* ops);
  std::vector<FetchOp*> AllAsked() const;

  // fetch_leaving.cc
  bool Unusable() const;
  void Leave();
  void OnFarewellAnswer(uint64_t epoch, absl::StatusOr<Hello> answer);
  std::vector<WaitingFetch> TakeAll();
  void TakeOut(FetchOp* op, std::vector<WaitingFetch>* taken);
  void MoveAway(FetchOp* op);
  void OnHeard();

  // fetch_sending.cc
  void OnFlush() override;
  bool SendRequest(FetchOp* op, KeyEntry* entry);
  bool SendKey(KeyEntry* entry, const TensorKey& key);
  KeyEntry* Intern(const TensorKey& key);
  void ForgetKeys();
  bool TakeSlot(FetchOp* op);
  void FreeSlot(FetchOp* op);
  LinkedLine<FetchOp>* NextLine();
  void SendSoon(FetchOp* op);

  // fetch_parking.cc
  void WatchLine();
  void ParkWaiting();
  bool MayPark(const FetchOp& op) const;
  void AskToPark(FetchOp* op);
  bool SendPark(FetchOp* op);
  bool SendWaits(FetchOp* op);
  bool SendTickets(wire::RecordType type, std::vector<uint64_t>* tickets);
  absl::Status OnParked(FetchOp* op);
  absl::Status OnHere(const wire::Record& record);
  void DropTicket(FetchOp* op);
  std::vector<FetchOp*> WithTickets() const;

  // fetch_turns.cc
  static void DropEnded(const TensorKey& key, AskedOps* asked);
  void KeepAsked(const TensorKey& key, KeyEntry* entry);
  static FetchOp* AskedBefore(KeyEntry* entry, const TensorKey& key, int64_t step,
                              const FetchOp* but);
  bool WaitsItsTurn(FetchOp* op, KeyEntry* entry);
  static void Follow(KeyLine* line, FetchOp* op);
  void LeaveKeyLine(FetchOp* op);
  void AskFollower(FetchOp* op);
  bool HandOver(FetchOp* op);
  void EndByCaller(FetchOp* op, const absl::Status& why);

  // fetch_destination.cc
  void ChooseDestination(FetchOp* op, uint64_t bytes_last);
  bool GiveDestination(FetchOp* op, uint64_t bytes, LandingPool::For what);
  void WaitForRoom(FetchOp* op);
  void DropDestination(FetchOp* op);
  void EndWaitingCharge(FetchOp* op);

  // fetch_receiving.cc
  absl::Status OnRecord(const wire::Record& record) override;
  absl::Status OnTensorPart(size_t lane, uint16_t slot, uint16_t generation) override;
  void OnAccepted() override {}
  void OnWritesDone() override {}
  absl::Status OnTensor(FetchOp* op, const wire::Record& record);
  absl::Status OnLanded(FetchOp* op, const wire::Record& record);
  absl::Status OnNeedDestination(FetchOp* op, const wire::Record& record);
  void OnFailed(FetchOp* op, const wire::Record& record);
  absl::Status TakeLanded(FetchOp* op);
  void LeaveIfOver(FetchOp* op);

  // fetch_standing.cc
  FetchOp* ClaimStanding(int64_t step_id, const TensorKey& key);
  void EndStanding(FetchOp* op, bool claimed);
  void DropAllStanding(const absl::Status& why);
  void NoteStep(const TensorKey& key, int64_t step_id);
  void NoteTensor(const TensorKey& key, const Tensor& tensor);
  void ArmNext(const TensorKey& key);
  void TakeAhead(FetchOp* op);

  // fetch_ending.cc
  void Complete(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void EndEarly(FetchOp* op, const absl::Status& why);
  void StartLeaving(FetchOp* op, const absl::Status& why);
  void Report(FetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void LastWord(FetchOp* op);
  void FreeIfDone(FetchOp* op);
  void Flush() override;  // Delivers what waits for it.
  void OnOpCancelled(FetchOp* op) override;
  void OnOpDeadline(FetchOp* op) override;
  void OnOpDelivered(FetchOp* op) override;
  FetchOp* TakeOp();
  int64_t now_ns() const { return hub_->poller()->now_ns(); }

  // Constant after construction.
  QueueHub* const hub_;
  LandingPool* const landings_;
  Bootstrap* const bootstrap_;
  const FetchChannelOptions options_;
  TraceTrack* const track_;  // Null without a trace.

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
  int64_t state_since_ns_ = 0;
  int64_t broken_since_ns_ = 0;
  int64_t waiting_since_ns_ = 0;  // Since when somebody waits.
  bool ping_due_ = false;
  absl::Status connect_status_;
  absl::Status close_status_;
  MemberTimer backoff_timer_;
  MemberTimer heartbeat_timer_;
  MemberTimer patience_timer_;
  int64_t last_word_ns_ = 0;    // When the peer last said anything, by this path or to a hello.
  bool lost_ = false;           // It has been silent for patience_ms: who comes now waits for one
                                // attempt to connect, not for the next.
  bool asks_for_less_ = false;  // The peer grants no messages of our size.

  std::deque<FetchOp> ops_;  // All there ever were; addresses stay.
  std::vector<FetchOp*> free_;
  size_t live_ = 0;  // Not in free_.
  bool asks_ahead_ = true;
  size_t standing_ = 0;          // Of those, standing: nobody waits for them.
  std::vector<FetchOp*> slots_;  // By slot; null: free.
  std::vector<uint16_t> generations_;
  std::vector<uint16_t> free_slots_;
  LinkedLine<FetchOp> queued_{&FetchOp::wait_link};      // kQueued, without a slot.
  LinkedLine<FetchOp> here_line_{&FetchOp::wait_link};   // The same, and the peer has the outcome: first.
  LinkedLine<FetchOp> send_line_{&FetchOp::send_link};   // With a slot and something to say.
  LinkedLine<FetchOp> room_line_{&FetchOp::wait_link};   // kWaitingRoom.
  LinkedLine<FetchOp> undelivered_{&FetchOp::end_link};  // The executor had no room.
  absl::flat_hash_map<TensorKey, KeyEntry> keys_;
  std::vector<TensorKey> key_of_id_;
  uint32_t next_key_id_ = 0;
  uint64_t next_order_ = 0;
  absl::flat_hash_map<TensorKey, AskedOps> strays_;  // KeyEntry::asked of keys without an entry.
  std::deque<KeyLine> key_lines_;                    // All there ever were.
  std::vector<KeyLine*> free_key_lines_;
  FetchCounters counters_;

  // Parking: fetches that wait for the peer's Send give their slots to those behind them.
  absl::flat_hash_map<uint64_t, FetchOp*> by_ticket_;  // kParked, or in here_line_.
  uint64_t next_ticket_ = 1;
  std::vector<uint64_t> unwanted_;  // To be told to the peer.
  bool pressed_ = false;            // Fetches wait in line behind others that wait for a Send.
  MemberTimer park_timer_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_FETCH_CHANNEL_H_
