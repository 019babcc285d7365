#ifndef TRYST_CHANNEL_SHM_FETCH_CHANNEL_H_
#define TRYST_CHANNEL_SHM_FETCH_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/ops/back_off.h"
#include "channel/ops/fetch_ops.h"
#include "channel/ops/peer_words.h"
#include "channel/ops/ring_line.h"
#include "channel/poller/member_timer.h"
#include "channel/poller/poller.h"
#include "channel/shm/fetch_op.h"
#include "channel/shm/peer_memory.h"
#include "channel/shm/producer_watch.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/small_storage.h"
#include "channel/shm/wire.h"
#include "channel/trace/trace.h"

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
  // For so long a producer may answer hellos and welcome nobody while somebody waits; then the
  // path is left, and on_left gets all that waits, in order. 0: it is never left.
  int64_t give_up_ms = 0;
  std::function<void(std::vector<WaitingFetch>)> on_left;
  Trace* trace = nullptr;  // Of the poller; may be null.
  uint64_t seed = 1;       // Of the jitter.
  uint64_t max_tensor_bytes = UINT64_MAX;
  int64_t hello_timeout_ms = 5000;
  int64_t join_timeout_ms = 5000;
  int64_t backoff_ms = 10;  // First pause between attempts; doubles.
  int64_t backoff_ms_most = 1000;
  // How long the report of a cancel or deadline waits for the producer's last word, so that
  // what is sent after the report is not taken by the request that was given up.
  int64_t leave_ms = 1000;
  // How long a fetch waits for a producer that does not answer: from the end of the link on, or
  // from its last sign of life.
  int64_t patience_ms = 60'000;
  // How many fetches wait at the producer without a slot, at most; others wait here.
  uint32_t max_waiting = 1'000'000;
  uint32_t link_newest = shm_wire::kLinkNewest;  // The newest version that we speak.
};

struct ShmFetchCounters : FetchCounts {
  uint64_t bytes = 0;
  uint64_t in_cells = 0;
  uint64_t by_reference = 0;  // Delivered as a view.
  uint64_t copied = 0;        // Out of a segment into the caller's memory.
  uint64_t pulled = 0;        // Out of the producer's memory.
  uint64_t in_parts = 0;
  uint64_t links = 0;  // Connections made.
  uint64_t breaks = 0;
  uint64_t asked_again = 0;  // Over another link.
  uint64_t digests_wrong = 0;
  uint64_t messages = 0;  // Cells written.

  ShmFetchCounters& operator+=(const ShmFetchCounters& other);
};

// The consumer's end of shared memory with one producer of this host. Connects when first
// asked. When the producer's process ends, what was asked of it ends with kUnavailable at once, and
// so does what is still to be asked of that life, once nobody answers in its place. What is not of
// that life waits for the next one, for as long as patience_ms. A process that lives and does
// nothing, because it was stopped, is given up as if it had ended when it has been silent for
// patience_ms.
// When either side ends the link for another reason, the two agree on what was accepted, and
// the rest is asked again, in its order, over a new link. Delivered views stay readable
// whatever happens.
//
// Nobody but us writes our memory: a caller's destination is free as soon as `done` runs.
class ShmFetchChannel final : public FetchOps,
                              private ShmHub::Watcher,
                              private ShmHub::Link,
                              private ProducerWatch::Owner,
                              private PollerFlush {
 public:
  ShmFetchChannel(ShmHub* hub, Bootstrap* bootstrap, ShmFetchOptions options);
  ~ShmFetchChannel() override;

  bool FetchesInCallbacks() const override { return true; }
  void Close(absl::Status why) override;
  bool Drained() const override;
  std::string Explain() const override;

  ShmFetchCounters counters() const {
    ShmFetchCounters now = counters_;
    now.messages += requests_.written();
    return now;
  }
  void Probe() override;
  void View(PathView* view) const override {
    view->state = state_text();
    view->why = std::string(connect_status_.message());
    view->since_ns = state_since_ns_;
    view->epoch = epoch_;
  }
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
  // What is to be said about a slot, when there is room.
  struct Word {
    shm_wire::CellType type;
    uint8_t flags;
    uint16_t slot;
    uint32_t generation;
  };
  static constexpr uint64_t kTurnBytes = 512 << 10;  // What one turn copies of a large tensor.
  static constexpr int kCellsPerTurn = 128;
  static constexpr int kPacketsPerLook = 8;
  static constexpr uint8_t kMisansweredMost = 3;  // Then a fetch fails with what was wrong.
  // Enough for a full ring; a producer that only says that it has ended may still write.
  static constexpr int kTurnsAfterEnd = 2 * shm_wire::kMaxCells / kCellsPerTurn;

  // Connection (fetch_connection.cc).
  void SetState(State state);
  void Connect();
  void OnHelloAnswer(uint64_t epoch, absl::StatusOr<Hello> answer);
  absl::Status Join(const Hello& answer);
  void FailConnect(const absl::Status& why);
  bool Unusable();
  void OnConnectTimer();
  void OnPatienceTimer();
  void WaitPatiently(int64_t since_ns);
  void EndWaiting(const absl::Status& why, absl::FunctionRef<bool(const FetchOp&)> which);
  void OnSocket() override;
  bool HearPacket();  // False: there was none, or the link has ended.
  absl::StatusOr<LocalSocket::Received> ReadPacket();
  absl::Status OnPacket(const shm_wire::Packet& packet, OwnedFd fd);
  absl::Status OnWelcome(const shm_wire::Packet& packet, OwnedFd fd);
  void OnProducerGone();
  bool Watched(uint32_t* cells) const override;
  void AskForSign() override;
  void OnSilent(int64_t silent_ms) override;
  // What becomes of the fetches that are out when a link ends.
  enum class Then {
    kAskAgain,
    kEndThem,  // The producer's life is over. What was meant for its next one waits for that.
    kEndAll,   // And there is no other link.
  };
  void Break(const absl::Status& why, Then then = Then::kAskAgain);
  bool Settle();
  void EndLink(const absl::Status& why, Then then);
  void Unlink(FetchOp* op);
  void EndAskedOf(uint64_t former_incarnation);
  void RetryLater();
  void DropLink();

  // Asking.
  FetchOp* MakeOp() override { return &ops_.emplace_back(this); }
  absl::Status MayFill(const Args& args) const override;
  void OnWaits(FetchOp* op) override;
  void FlushSoon() override { poller_->FlushThisTurn(this); }
  bool AsksAtOnce() const override { return words_.empty(); }
  bool HasRoom(const FetchOp& op) override { return requests_.HasRoom(KeyCells(op.key) + 1); }
  bool SendRequest(FetchOp* op, FetchKey* key, bool may_park) override;
  bool SendCancel(const FetchOp& op) override;
  bool SendPark(const FetchOp& op) override;
  bool SendUnwanted(absl::Span<const uint64_t> tickets) override;
  size_t most_tickets() const override { return shm_wire::kRequestTickets; }
  void TellKey(FetchKey* key);
  bool Say(const Word& word);
  void SaySoon(const FetchOp& op, shm_wire::CellType type, uint8_t flags);
  bool SayWords();
  static uint32_t KeyCells(const TensorKey& key);
  static uint8_t DestinationFlag(const FetchOp& op);
  static ShmFetchOp* Own(FetchOp* op) { return static_cast<ShmFetchOp*>(op); }

  // Receiving.
  bool PollLink() override;
  bool Ready() const override { return state_ == State::kOpen && replies_.Ready(); }
  void FallAsleep() override;
  bool WakeUp() override;
  absl::Status OnCell(const shm_wire::ReplyCell& cell);
  absl::Status OnWord(ShmFetchOp* op, FetchEvent event, const shm_wire::ReplyCell& cell);
  bool CountsAsGone(const FetchOp& op) const;
  absl::Status OnInline(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status OnPlaced(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status OnReference(ShmFetchOp* op, const shm_wire::Placed& placed, StorageRef view);
  absl::Status OnPart(ShmFetchOp* op, const shm_wire::Placed& placed, StorageRef view,
                      bool has_digest);
  void OnPull(ShmFetchOp* op, const shm_wire::Placed& placed);
  void NoteMisanswered(const shm_wire::ReplyCell& cell);
  absl::Status StartFailedText(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status OnFailedText(const uint8_t* text, size_t bytes);
  bool FillDestination(ShmFetchOp* op, const shm_wire::ReplyCell& cell);
  absl::Status Prepare(ShmFetchOp* op);
  void RunCopy();
  absl::Status CopySome(ShmFetchOp* op);
  void EndCopy(ShmFetchOp* op, absl::Status status);
  absl::StatusOr<Tensor> Finish(ShmFetchOp* op);

  // Ending.
  void Complete(ShmFetchOp* op, absl::Status status, Tensor tensor, bool is_dead);
  void TurnDown(ShmFetchOp* op, absl::Status status);
  void Refuse(FetchOp* op) override;
  void DropMemory(FetchOp* op) override;
  void OnLeaves(FetchOp* op, FetchState) override { DropMemory(op); }
  bool PassMemory(FetchOp* from, FetchOp* to) override;
  uint64_t BytesOf(const FetchOp& op) const override;
  void TellAccepted();
  void NoteRefused(const FetchOp* op);
  void Flush() override;

  // Constant after construction.
  ShmHub* const hub_;
  Bootstrap* const bootstrap_;
  const ShmFetchOptions options_;

  // Poller thread only.
  State state_ = State::kIdle;
  std::shared_ptr<LocalSocket> socket_;
  OwnedFd producer_process_;        // A child that it forked may hold its end of the socket.
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
  MemberTimer<ShmFetchChannel> connect_timer_;
  MemberTimer<ShmFetchChannel> patience_timer_;  // Set while anybody waits for a link.
  ProducerWatch watch_;
  int64_t lost_ns_ = 0;             // When the last link ended.
  int64_t attempt_ns_ = 0;          // When this attempt to connect began.
  bool answered_ = false;           // The hello of this attempt: the producer is up.
  int64_t unusable_since_ns_ = -1;  // Since when such attempts fail; -1: they do not.
  uint64_t gone_incarnation_ = 0;   // Its process has ended, and nobody has answered since.

  std::deque<ShmFetchOp> ops_;     // All there ever were; addresses stay.
  std::vector<uint32_t> refused_;  // The generation after the last whose answer was not accepted.
  RingLine<ShmFetchOp*> copies_;   // kCopying.
  RingLine<Word> words_;
  shm_wire::CellHead failed_head_{};  // Of an error text that is coming in.
  std::string failed_text_;
  size_t failed_bytes_ = 0;
  bool in_failed_text_ = false;
  uint32_t accepted_told_ = 0;
  SmallStorage* const small_;  // Counted: one is ours.
  ShmFetchCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_FETCH_CHANNEL_H_
