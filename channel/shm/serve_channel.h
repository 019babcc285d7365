#ifndef TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_
#define TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/bootstrap.h"
#include "channel/ops/ring_line.h"
#include "channel/ops/takes.h"
#include "channel/poller/poller.h"
#include "channel/shm/copy_gauge.h"
#include "channel/shm/parts_room.h"
#include "channel/shm/references.h"
#include "channel/shm/ring.h"
#include "channel/shm/serve_op.h"
#include "channel/shm/shm_hub.h"
#include "channel/shm/wire.h"
#include "channel/trace/live_ops.h"
#include "channel/trace/trace.h"
#include "rendezvous/tensor_source.h"

namespace tryst {

struct ShmServeOptions {
  shm_wire::LinkSizes most;  // The consumer's sizes are taken up to these.
  std::string self;
  uint64_t self_incarnation = 0;
  bool digests = false;
  // Of what is copied into the arena for this consumer and not yet returned.
  uint64_t stage_bytes = 512 << 20;
  // Into the caller's memory tensors go in parts, which takes less time
  // (docs/decisions/0024-large-copies.md). Of more than pull_bytes and up to parts_bytes the
  // consumer reads them out of ours.
  uint64_t pull_bytes = 64 << 10;
  uint64_t parts_bytes = 64 << 10;
  bool allow_pull = true;
  // The consumer gets copies alone, in memory of its own link: it could read in our segments what
  // is meant for others. So does a process of another user in any case.
  bool apart = false;
  uint32_t link_newest = shm_wire::kLinkNewest;  // The newest version that we speak.
  std::function<void()> on_drained;              // After its end. May be null.
  Trace* trace = nullptr;                        // Of the poller; may be null.
};

struct ShmServeCounters {
  uint64_t requests = 0;
  uint64_t in_cells = 0;      // Inside the message.
  uint64_t by_reference = 0;  // Without a copy.
  uint64_t staged = 0;        // With one copy, into the arena.
  uint64_t pulled = 0;        // With one copy, by the consumer.
  uint64_t in_parts = 0;      // With two.
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t given_back = 0;
  uint64_t bytes = 0;
  uint64_t messages = 0;  // Cells written.

  ShmServeCounters& operator+=(const ShmServeCounters& other);
};

// The producer's end of one link of shared memory, from the hello to the end of the
// consumer. What the consumer still holds then stays as it is: the arena keeps it aside.
// A consumer that comes again gets another one. A link that ends while the consumer lives is
// settled: what was answered is kept until the consumer has written down which of it it
// accepted, and the rest goes back to its place. Poller thread only.
class ShmServeChannel final : private ShmHub::Host,
                              private ShmHub::Watcher,
                              private ShmHub::Link,
                              private TakesUser,
                              private PollerFlush,
                              private PollerTimer {
 public:
  // `consumer` and `offer` are the hello's, and have been found good.
  ShmServeChannel(ShmHub* hub, TensorSource* source, ShmServeOptions options, const Hello& consumer,
                  const shm_wire::Offer& offer);
  ~ShmServeChannel() override;  // REQUIRES: Drained().

  // What the consumer needs to come in.
  absl::StatusOr<Hello> Invite();
  // For good: nothing is answered any more, nor kept. `why` is for the log.
  void Close(const absl::Status& why);
  // The consumer says `hello` for another link: this one is over, and settled. False: the hello
  // is older than this link.
  bool MakeWayFor(const Hello& hello);
  // Gives up a consumer that was invited long ago and has not come.
  void EndIfNotJoined();
  // The consumer has gone, or did not come, or was closed.
  bool ended() const { return state_ == State::kEnded; }
  bool Drained() const;

  const std::string& consumer() const { return consumer_; }
  uint64_t consumer_incarnation() const { return consumer_incarnation_; }
  ShmServeCounters counters() const {
    ShmServeCounters now = counters_;
    now.messages += replies_.written();
    return now;
  }
  std::string Explain() const;
  void ListOps(LiveOps* ops) const;
  const char* state_text() const;
  // Whether it has joined and is not to map what others read.
  bool apart() const { return socket_ != nullptr && apart_; }
  int64_t state_since_ns() const { return since_ns_; }
  uint64_t epoch() const { return epoch_; }

 private:
  enum class State : uint8_t {
    kInvited,   // For the consumer to knock.
    kWelcome,   // For it to say that it has mapped the memory.
    kOpen,      // For nothing.
    kLeaving,   // For it to return what it holds: it asks for nothing more.
    kSettling,  // For it to say what it has accepted of what it was answered.
    kEnded,
  };
  enum class Ending {
    kConsumerGone,  // Its process, as far as can be seen.
    kConsumerLeft,  // It has ended the link.
    kOnPurpose,     // By us.
    kForGood,       // By us, who end, too.
  };
  struct KnownKey {
    TensorKey key;
    bool for_consumer = false;  // The hello has authenticated it: it gets what is meant for it.
    bool may_take = false;      // TensorSource::MayTake.
  };
  static constexpr uint64_t kTurnBytes = 512 << 10;  // What one turn copies of a large tensor.
  // A copy of so much in one piece has left the caches before anybody reads it.
  static constexpr uint64_t kAroundCachesBytes = 2 << 20;
  // Small enough that both sides soon have something to do, large enough for what each costs.
  static constexpr uint64_t kLeastPartBytes = 16 << 10;
  static constexpr uint64_t kPartBytes = 64 << 10;
  static constexpr uint64_t kPartsRoomBytes = 2 << 20;
  static constexpr int kCellsPerTurn = 64;
  static constexpr int kPacketsPerLook = 8;
  static constexpr int64_t kAcceptedNs = 2'000;  // How often it is looked for.
  static constexpr int64_t kJoinNs = 15'000'000'000;
  static constexpr int64_t kSettleNs = 60'000'000'000;  // Then a consumer is taken for lost.

  // Connection.
  void OnGuest(std::unique_ptr<LocalSocket> socket) override;
  absl::Status Welcome();
  void OnSocket() override;
  bool HearPacket();  // False: there was none, or the link has ended.
  absl::Status OnReady(const shm_wire::Packet& packet);
  void OnLeave();
  void End(const absl::Status& why, Ending how);
  void StartEnding(const absl::Status& why, Ending how);
  bool Settle(Ending how);
  void SettleByWord();
  void SettleLater();
  void FinishEnding(bool consumer_gone);
  bool PollLink() override;
  bool Ready() const override { return requests_.Ready() || given_->HasReturned(); }
  void FallAsleep() override;
  bool WakeUp() override;
  void Flush() override;

  // What the consumer says.
  absl::Status OnCell(const shm_wire::RequestCell& cell);
  absl::Status OnKeyText(const uint8_t* text, size_t bytes);
  absl::Status OnRequest(const shm_wire::RequestCell& cell);
  absl::Status OnCancel(const shm_wire::RequestCell& cell);
  absl::Status OnPulled(const shm_wire::RequestCell& cell);
  absl::Status OnRefused(const shm_wire::RequestCell& cell);
  // Without a slot.
  absl::Status OnPark(const shm_wire::RequestCell& cell);
  absl::Status OnUnwanted(const shm_wire::RequestCell& cell);
  void Park(ShmServeOp* op, uint64_t ticket);
  void SayParked();
  bool SayOfSlot(shm_wire::CellType type, uint16_t slot, uint32_t generation);
  void SayPong();
  void OnHere() override { hub_->poller()->FlushThisTurn(this); }

  // Taking.
  bool TakeHere(ShmServeOp* op, KnownKey* known);
  void OnTakeEnded(TakingOp* base, ServeTake* take) override;
  void OnTakesIdle() override;
  void SetReady(ShmServeOp* op);
  // Nobody gets it here: it goes back to its place, and the slot is free.
  void GiveUp(ShmServeOp* op);
  void Sent(ShmServeOp* op);
  bool ReleaseAccepted();
  void OnTimer() override;
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
    return TraceId(link_number_, uint64_t{op.slot} << 32 | op.request.generation, op.request.step);
  }
  void GiveUpUnanswered();
  void ReleaseAnswered();
  bool AnyAnswered() const;

  // Answering. False: no room now.
  void AnswerSoon(ShmServeOp* op);
  void AnswerWaiting();
  bool Answer(ShmServeOp* op);
  bool AnswerFailed(ShmServeOp* op);
  void AnswerInline(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerResident(ShmServeOp* op);
  bool AnswerByCopy(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool StartStage(ShmServeOp* op, uint64_t bytes);
  bool CopyToStage(ShmServeOp* op, uint64_t most);
  bool AnswerStaged(ShmServeOp* op);
  void AnswerPull(ShmServeOp* op, const void* payload, uint64_t bytes);
  bool AnswerInParts(ShmServeOp* op);
  bool OpenPartsRoom();
  void CopyForReader(void* to, const void* from, uint64_t bytes);
  bool SegmentIndex(uint64_t segment_id, uint16_t* index);
  void TellGoneSegments();
  shm_wire::Placed Describe(const ShmServeOp& op, uint64_t bytes) const;
  const void* Payload(const ShmServeOp& op, uint64_t* bytes) const;
  void PutReply(shm_wire::CellType type, uint8_t flags, const ShmServeOp& op, uint32_t number,
                shm_wire::ReplyCell* cell);
  void PutPlaced(shm_wire::CellType type, const ShmServeOp& op, const shm_wire::Placed& placed);

  // Constant after construction.
  ShmHub* const hub_;
  TensorSource* const source_;
  const ShmServeOptions options_;
  const std::string consumer_;
  const uint64_t consumer_incarnation_;
  const uint64_t epoch_;
  TraceTrack* const track_;  // Null without a trace.
  shm_wire::LinkSizes sizes_;
  bool digests_ = false;

  // Poller thread only.
  State state_ = State::kInvited;
  int64_t since_ns_ = 0;
  uint64_t link_number_ = 0;  // By which both ends know it, for traces.
  uint32_t link_version_ = 0;
  int64_t settle_pause_ns_ = 0;
  absl::Status end_status_;
  std::shared_ptr<LocalSocket> socket_;
  std::shared_ptr<GivenReferences> given_;
  shm_wire::Token proof_{};  // In our own memory: what the consumer tries to read here.
  bool can_pull_ = false;
  bool apart_ = true;  // ShmServeOptions::apart, or another user's process.
  bool link_added_ = false;
  RingReader<shm_wire::kRequestCellBytes> requests_;
  RingWriter<shm_wire::kReplyCellBytes> replies_;
  std::vector<KnownKey> keys_;  // By the consumer's id.
  uint64_t keys_bytes_ = 0;     // Of their texts.
  TensorSource::Place place_;
  Taken taken_;           // Empty between two takes.
  std::string key_text_;  // Of which more cells are to come.
  uint32_t key_id_ = 0;
  size_t key_bytes_ = 0;
  std::deque<ShmServeOp> ops_;  // By slot.
  struct SentCell {
    ShmServeOp* op;
    uint32_t generation;
    uint32_t cell;  // After which it counts as accepted.
  };
  RingLine<SentCell> sent_line_;  // kSent, and some whose slot has moved on.
  int64_t accepted_checked_ns_ = 0;
  int64_t accepted_pause_ns_ = 0;
  RingLine<ShmServeOp*> ready_line_;  // kReady, kInParts.
  RingLine<ShmServeOp*> stage_line_;  // kStaging.
  std::vector<std::pair<uint16_t, uint32_t>> gone_line_;
  std::vector<std::pair<uint16_t, uint32_t>> parked_line_;  // PARKED to be said.
  absl::flat_hash_map<uint64_t, uint16_t> segment_index_;
  std::vector<uint64_t> segment_ids_;  // By index; 0: gone.
  std::vector<uint16_t> gone_segments_;
  uint64_t segments_dropped_ = 0;
  std::shared_ptr<Arena> parts_;  // Memory for tensors that go in parts; made when first needed.
  StorageRef parts_block_;        // All of it.
  PartsRoom parts_room_{kPartsRoomBytes};
  CopyGauge gauge_{kPartsRoomBytes};
  uint64_t staging_bytes_ = 0;  // Of stage_line_.
  ShmServeCounters counters_;
  Takes takes_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SERVE_CHANNEL_H_
