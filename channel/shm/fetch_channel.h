#ifndef TRYST_CHANNEL_SHM_FETCH_CHANNEL_H_
#define TRYST_CHANNEL_SHM_FETCH_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/poller.h"
#include "channel/shm/fetch_op.h"
#include "channel/ops/back_off.h"
#include "channel/ops/peer_words.h"
#include "channel/ops/ring_line.h"
#include "channel/shm/peer_memory.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/small_storage.h"
#include "channel/shm/wire.h"
#include "channel/trace.h"

namespace tryst {

struct ShmFetchOptions {
  shm_wire::LinkSizes sizes;
  bool digests = false;
  bool allow_pull = true;  // Read the producer's own memory, where the kernel lets us.
  std::string self;        // Our worker name.
  uint64_t self_incarnation = 0;
  std::string peer;                  // The producer's worker name.
  std::function<void()> on_refused;  // No shared memory with this peer; may call TakeWaiting().
  std::function<void()> on_open;     // There is a link. May be null.
  Trace* trace = nullptr;            // Of the poller; may be null.
  uint64_t seed = 1;                 // Of the jitter.
  int64_t hello_timeout_ms = 5000;
  int64_t join_timeout_ms = 5000;
  int64_t backoff_ms = 10;  // First pause between attempts; doubles.
  int64_t backoff_ms_most = 1000;
  // How long the report of a cancel or deadline waits for the producer's last word, so that
  // what is sent after the report is not taken by the request that was given up.
  int64_t leave_ms = 1000;
  // How long a fetch waits for a producer that does not answer, from the end of the link on.
  int64_t patience_ms = 60'000;
  // How many fetches wait at the producer without a slot, at most; others wait here.
  uint32_t max_waiting = 1'000'000;
  uint32_t link_newest = shm_wire::kLinkNewest;  // The newest version that we speak.
};

struct ShmFetchCounters {
  uint64_t fetches = 0;
  uint64_t ended_ok = 0;
  uint64_t ended_failed = 0;
  uint64_t bytes = 0;
  uint64_t in_cells = 0;
  uint64_t by_reference = 0;  // Delivered as a view.
  uint64_t copied = 0;        // Out of a segment into the caller's memory.
  uint64_t pulled = 0;        // Out of the producer's memory.
  uint64_t in_parts = 0;
  uint64_t cancels_sent = 0;
  uint64_t links = 0;  // Connections made.
  uint64_t breaks = 0;
  uint64_t asked_again = 0;  // Over another link.
  uint64_t digests_wrong = 0;
  uint64_t messages = 0;  // Cells written.

  ShmFetchCounters& operator+=(const ShmFetchCounters& other);
};

// The consumer's end of shared memory with one producer of this host. Connects when first
// asked. When the producer's process ends, what was asked of it ends with kAborted at once, and
// what is still to be asked of that life with kUnavailable, once nobody answers in its place. What
// is not of that life waits for the next one, for as long as patience_ms.
// When either side ends the link for another reason, the two agree on what was accepted, and
// the rest is asked again, in its order, over a new link. Delivered views stay readable
// whatever happens.
//
// Nobody but us writes our memory: a caller's destination is free as soon as `done` runs.
class ShmFetchChannel final : public Channel,
                              public ShmFetchOpOwner,
                              private ShmHub::Watcher,
                              private ShmHub::Link,
                              private PollerFlush {
 public:
  ShmFetchChannel(ShmHub* hub, Bootstrap* bootstrap, ShmFetchOptions options);
  ~ShmFetchChannel() override;

  void Fetch(int64_t step_id, const TensorKey& key, const Args& args, DoneFn done) override;
  // As a Fetch of each key, with one callback. REQUIRES: args.destination is unset.
  void FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const Args& args,
                 ManyDoneFn done);
  void AbortStep(int64_t step_id, const absl::Status& why) override;
  void Close(absl::Status why) override;
  bool Drained() const override;
  std::string Explain() const override;
  void ListOps(LiveOps* ops) const override;

  // Takes out what the producer has not been asked for: another channel is to fetch it.
  std::vector<WaitingFetch> TakeWaiting();
  ShmFetchCounters counters() const {
    ShmFetchCounters now = counters_;
    now.messages += requests_.written();
    return now;
  }
  // Connects, if it does not yet, although nobody asks. Ends in on_proved or on_refused.
  void Prove();
  // The cause of the last failed attempt to connect; OK while there is a link.
  const absl::Status& connect_status() const { return connect_status_; }
  bool connected() const { return state_ == State::kOpen; }
  const char* state_text() const;
  int64_t state_since_ns() const { return state_since_ns_; }
  uint64_t epoch() const { return epoch_; }
  // Bytes of the producer's segments that are mapped here.
  uint64_t mapped_bytes() const { return held_ == nullptr ? 0 : held_->mapped_bytes(); }

 private:
  // What the connection waits for.
  enum class State : uint8_t {
    kIdle,     // For a first fetch.
    kHello,    // For the producer's invitation.
    kJoining,  // For its welcome on the socket.
    kOpen,     // For nothing.
    kBackoff,  // For the pause before the next attempt.
    kClosed,
  };
  struct KeyEntry {
    TensorKey key;
    uint64_t link = 0;    // On which the producer was told the id.
    uint64_t newest = 0;  // The newest fetch that asked for it, by ShmFetchOp::order.
  };
  // What is to be said about a slot, when there is room.
  struct Word {
    shm_wire::CellType type;
    uint8_t flags;
    uint16_t slot;
    uint32_t generation;
  };
  struct ConnectTimer final : PollerTimer {
    explicit ConnectTimer(ShmFetchChannel* channel) : channel(channel) {}
    void OnTimer() override { channel->OnConnectTimer(); }
    ShmFetchChannel* const channel;
  };
  struct PatienceTimer final : PollerTimer {
    explicit PatienceTimer(ShmFetchChannel* channel) : channel(channel) {}
    void OnTimer() override { channel->OnPatienceTimer(); }
    ShmFetchChannel* const channel;
  };
  static constexpr uint64_t kTurnBytes = 512 << 10;  // What one turn copies of a large tensor.
  static constexpr int kCellsPerTurn = 128;
  static constexpr int64_t kWantNs = 1'000'000;   // Without a free slot; then who waits is told.
  static constexpr uint8_t kMisansweredMost = 3;  // Then a fetch fails with what was wrong.
  // Enough for a full ring; a producer that only says that it has ended may still write.
  static constexpr int kTurnsAfterEnd = 2 * shm_wire::kMaxCells / kCellsPerTurn;

  // Connection (fetch_connection.cc).
  void Connect();
  void OnHelloAnswer(uint64_t epoch, absl::StatusOr<Hello> answer);
  absl::Status Join(const Hello& answer);
  void FailConnect(const absl::Status& why);
  void OnConnectTimer();
  void OnPatienceTimer();
  void WaitPatiently(int64_t since_ns);
  void EndWaiting(const absl::Status& why, absl::FunctionRef<bool(const ShmFetchOp&)> which);
  void OnSocket() override;
  bool HearPacket();  // False: there was none, or the link has ended.
  absl::StatusOr<LocalSocket::Received> ReadPacket();
  absl::Status OnPacket(const shm_wire::Packet& packet, OwnedFd fd);
  absl::Status OnWelcome(const shm_wire::Packet& packet, OwnedFd fd);
  void OnProducerGone();
  // What becomes of the fetches that are out when a link ends.
  enum class Then {
    kAskAgain,
    kEndThem,  // The producer's life is over. What was meant for its next one waits for that.
    kEndAll,   // And there is no other link.
  };
  void Break(const absl::Status& why, Then then = Then::kAskAgain);
  bool Settle();
  void EndLink(const absl::Status& why, Then then);
  void EndAskedOf(uint64_t former_incarnation);
  void RetryLater();
  void DropLink();

  // Asking.
  void Start(ShmFetchOp* op);
  bool Ask(ShmFetchOp* op);
  void TellKey(uint32_t id);
  uint32_t Intern(const TensorKey& key);
  bool Say(const Word& word);
  void SaySoon(ShmFetchOp* op, shm_wire::CellType type, uint8_t flags);
  void SendWaiting();
  uint16_t GiveSlot(ShmFetchOp* op);
  // Without a slot (fetch_wants.cc).
  struct WantTimer final : PollerTimer {
    explicit WantTimer(ShmFetchChannel* channel) : channel(channel) {}
    void OnTimer() override { channel->OnWantTimer(); }
    ShmFetchChannel* const channel;
  };
  void WantWaiting();
  void TellWants();
  void OnWantTimer();
  bool Claim(ShmFetchOp* op);
  void UnwantSoon(ShmFetchOp* op, bool at_any_rate);
  bool SayUnwants();
  absl::Status OnHere(const shm_wire::ReplyCell& cell);
  absl::Status OnUnwanted(const shm_wire::ReplyCell& cell);
  void StayHere(ShmFetchOp* op);
  static uint32_t KeyCells(const TensorKey& key);
  static uint8_t DestinationFlag(const ShmFetchOp& op);
  const Args& ArgsOf(const ShmFetchOp& op) const {
    return op.many != nullptr ? op.many->args : op.args;
  }

  // Receiving.
  bool PollLink() override;
  bool Ready() const override { return state_ == State::kOpen && replies_.Ready(); }
  void FallAsleep() override;
  bool WakeUp() override;
  absl::Status OnCell(const shm_wire::ReplyCell& cell);
  absl::Status OnInline(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status OnPlaced(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status OnReference(ShmFetchOp* op, const shm_wire::Placed& placed, StorageRef view);
  absl::Status OnPart(ShmFetchOp* op, const shm_wire::Placed& placed, StorageRef view,
                      bool has_digest);
  void OnPull(ShmFetchOp* op, const shm_wire::Placed& placed);
  void NoteMisanswered(const shm_wire::ReplyCell& cell);
  absl::Status StartFailedText(const shm_wire::ReplyCell& cell, uint64_t serial, size_t text_at);
  absl::Status OnFailedText(const uint8_t* text, size_t bytes);
  bool FillDestination(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status Prepare(ShmFetchOp* op);
  void RunCopy();
  absl::Status CopySome(ShmFetchOp* op);
  void EndCopy(ShmFetchOp* op, absl::Status status);
  absl::StatusOr<Tensor> Finish(ShmFetchOp* op);

  // Ending.
  enum class When { kNow, kAtEndOfTurn };
  void Complete(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void Refuse(ShmFetchOp* op, absl::Status status);
  bool WasPassed(const ShmFetchOp& op) const;
  bool MustStay(const ShmFetchOp& op) const;
  bool Stays(ShmFetchOp* op);
  void TurnDown(ShmFetchOp* op);
  void TellAccepted();
  void EndEarly(ShmFetchOp* op, const absl::Status& why);
  void Report(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead, When when);
  void NoteRefused(const ShmFetchOp* op);
  void LastWord(ShmFetchOp* op);
  void FreeIfDone(ShmFetchOp* op);
  void DeliverHere(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  bool TryDeliver(ShmFetchOp* op);
  bool TryDeliverMany(ShmManyFetch* many);
  void Flush() override;
  void OnOpCancelled(ShmFetchOp* op) override;
  void OnOpTimer(ShmFetchOp* op) override;
  void OnOpDelivered(ShmFetchOp* op) override;
  ShmFetchOp* TakeOp();
  Poller* poller() const { return hub_->poller(); }
  int64_t now_ns() const { return hub_->poller()->now_ns(); }

  // Constant after construction.
  const Args no_args_;
  ShmHub* const hub_;
  Bootstrap* const bootstrap_;
  const ShmFetchOptions options_;
  TraceTrack* const track_;  // Null without a trace.

  // Poller thread only.
  State state_ = State::kIdle;
  std::shared_ptr<LocalSocket> socket_;
  HeldReferences* held_ = nullptr;  // Counted: one is ours.
  std::unique_ptr<PeerMemory> peer_memory_;
  RingWriter<shm_wire::kRequestCellBytes> requests_;
  RingReader<shm_wire::kReplyCellBytes> replies_;
  uint64_t epoch_ = 0;
  uint64_t peer_incarnation_ = 0;  // Of the link.
  uint64_t link_number_ = 0;       // By which both ends know it, for traces.
  uint32_t link_version_ = 0;
  int hellos_out_ = 0;
  BackOff back_off_;
  int64_t state_since_ns_ = 0;
  absl::Status connect_status_;
  absl::Status close_status_;
  ConnectTimer connect_timer_;
  PatienceTimer patience_timer_;   // Set while anybody waits for a link.
  int64_t lost_ns_ = 0;            // When the last link ended.
  uint64_t gone_incarnation_ = 0;  // Its process has ended, and nobody has answered since.

  std::deque<ShmFetchOp> ops_;  // All there ever were; addresses stay.
  std::vector<ShmFetchOp*> free_;
  size_t live_ = 0;                 // Not in free_.
  std::vector<ShmFetchOp*> slots_;  // By slot; null: free.
  std::vector<uint32_t> generations_;
  std::vector<uint32_t> refused_;  // The generation after the last whose answer was not accepted.
  std::vector<uint16_t> free_slots_;
  size_t reserved_slots_ = 0;                         // For claims.
  int64_t freed_ns_ = 0;                              // When a slot became free last.
  absl::flat_hash_map<uint64_t, ShmFetchOp*> wants_;  // By serial.
  uint64_t last_serial_ = 0;
  RingLine<ShmFetchOp*> here_;  // kHere.
  RingLine<uint64_t> unwants_;  // To be said.
  WantTimer want_timer_;
  RingLine<ShmFetchOp*> queued_;       // kQueued.
  RingLine<ShmFetchOp*> copies_;       // kCopying.
  RingLine<ShmFetchOp*> undelivered_;  // Ended outside a turn, or the executor had no room.
  RingLine<ShmManyFetch*> undelivered_many_;
  RingLine<Word> words_;
  std::deque<ShmManyFetch> many_;
  std::vector<ShmManyFetch*> free_many_;
  std::vector<KeyEntry> keys_;  // By id.
  absl::flat_hash_map<TensorKey, uint32_t> key_ids_;
  uint32_t next_key_id_ = 0;
  uint64_t order_ = 0;               // Of the newest fetch that was asked.
  ShmFetchOp* failed_op_ = nullptr;  // Whose error text is coming in.
  shm_wire::CellHead failed_head_{};
  std::string failed_text_;
  size_t failed_bytes_ = 0;
  bool in_failed_text_ = false;
  uint64_t failed_serial_ = 0;  // Of a want; 0: of a slot.
  uint32_t accepted_told_ = 0;
  SmallStorage* const small_;  // Counted: one is ours.
  ShmFetchCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_CHANNEL_H_
