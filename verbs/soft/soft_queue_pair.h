#ifndef TRYST_VERBS_SOFT_SOFT_QUEUE_PAIR_H_
#define TRYST_VERBS_SOFT_SOFT_QUEUE_PAIR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "verbs/nic.h"
#include "verbs/patience.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_completion_queue.h"
#include "verbs/soft/soft_context.h"
#include "verbs/soft/soft_lane.h"

namespace tryst {

// A Window whose key changes when a queue pair binds it.
class SoftWindow final : public Window {
 public:
  explicit SoftWindow(SoftContext* context) : context_(context) {}
  ~SoftWindow() override { context_->regions.UnbindWindow(remote_key_); }
  uint32_t remote_key() const override { return remote_key_; }
  void set_remote_key(uint32_t remote_key) { remote_key_ = remote_key; }

 private:
  SoftContext* const context_;
  uint32_t remote_key_ = 0;
};

// Both ends of a reliable connection. As the requester: works wait in a ring until they are
// started, sent, executed by the peer and given back, in that order. As the responder: requests are
// executed one at a time, in order of their sequence. The first lane carries everything except the
// later fragments of large messages.
//
// It has four sources: the works (_post), frames that are sent (_send), frames that are received
// (_receive), and lanes, timers and breaking.
class SoftQueuePair final : public QueuePair {
 public:
  // REQUIRES: `options` fit the limits, and the queue has reserved their depths.
  SoftQueuePair(SoftContext* context, SoftCompletionQueue* completions,
                const QueuePairOptions& options, uint32_t number);
  ~SoftQueuePair() override;

  uint32_t number() const override { return number_; }
  QueuePairState state() const override;
  std::string LocalAddress() const override;
  absl::Status Connect(absl::string_view remote_address) override;
  absl::Status PostSend(absl::Span<const SendWork> works) override;
  absl::Status PostReceive(absl::Span<const ReceiveWork> works) override;
  uint32_t send_room() const override { return options_.send_depth - sends_held_; }
  uint32_t receive_room() const override { return options_.receive_depth - receives_held_; }
  bool sends_wait_for_poll() const override;
  void Break() override;

  // The rest is for the completion queue.
  //
  // Takes over a dialled stream if `hello` shows that it is the peer's. False: it is not, and the
  // caller keeps it.
  bool Adopt(const SoftHello& hello, SoftStream* stream);
  const Token& token() const { return token_; }
  void Serve(SoftLane* lane);  // It may have something to read, or room to write.
  void OnPolled(uint32_t sends_back, uint32_t receives_back);
  void PayDebt();  // Sends acknowledgements that are due and that nothing else will carry.
  // Whether another frame may still carry them: an answer of ours, or our next request.
  bool DebtMayWait(uint64_t turn, bool sleeping) const;
  void OnTimer(int64_t now_ns);
  int64_t next_timer_ns(int64_t now_ns) const;  // INT64_MAX: none is set.
  void WatchLanes();                            // Watches for room the lanes that wait for it.
  // True: that is a change. When it becomes inactive, it forgets how long it had waited.
  bool SetActive(bool active);

 private:
  enum class Taken { kYes, kLater, kBroken };

  struct SendSlot {
    uint64_t id = 0;
    uint64_t remote_address = 0;
    uint64_t total = 0;
    uint64_t assigned = 0;   // Bytes assigned to lanes.
    uint64_t landed = 0;     // Of a READ.
    uint64_t announced = 0;  // Of a READ: in frames that have begun.
    uint32_t sequence = 0;   // Of a request; set when it is started.
    uint32_t remote_key = 0;
    uint32_t immediate = 0;
    uint32_t unwritten_frames = 0;
    SoftWindow* window = nullptr;
    uint32_t window_key = 0;
    uint32_t window_old_key = 0;
    uint32_t window_region_key = 0;  // The region's local key.
    uint32_t window_access = 0;
    uint64_t window_bytes = 0;
    int entries = 0;
    SendOp op = SendOp::kWrite;
    CompletionStatus error = CompletionStatus::kOk;  // An error found before it was sent.
    bool signaled = true;
    bool fence = false;
    bool inline_data = false;
    bool started = false;
    bool announced_first = false;  // Its first frame is in a batch.
    bool answered = false;         // All bytes of a READ are there.
  };
  struct ReceiveBody {
    uint64_t total = 0;
    int entries = 0;
  };
  // The request that is being executed; its frames may come on several lanes.
  struct Incoming {
    bool active = false;
    FrameHeader first;
    uint64_t announced = 0;
    uint64_t landed = 0;
    Entry region;  // The destination of a write.
  };
  struct ReadToServe {
    uint32_t sequence = 0;
    uint32_t remote_key = 0;
    uint64_t address = 0;
    uint64_t total = 0;
    uint64_t assigned = 0;
  };

  // _post
  absl::Status Check(const SendWork& work) const;
  absl::Status CheckWindow(const SendWork& work) const;
  void Enqueue(const SendWork& work);
  void GrowSends();
  SendSlot& send(uint64_t i) { return send_slots_[i & send_mask_]; }
  Entry* send_entries(uint64_t i) {
    return &send_entries_[(i & send_mask_) * options_.max_entries];
  }
  ReceiveBody receive(uint64_t i) const {
    return receive_bodies_.empty() ? ReceiveBody() : receive_bodies_[i & receive_mask_];
  }
  Entry* receive_entries(uint64_t i) {
    if (receive_entries_.empty()) return nullptr;
    return &receive_entries_[(i & receive_mask_) * options_.max_entries];
  }
  bool Done(const SendSlot& slot) const;
  void GiveBackSends();  // Completes finished works in order; breaks at a failed one.
  void FinishSend(SendSlot* slot, CompletionStatus status);
  // `request` is the frame that it was for, if there is one.
  void FinishReceive(CompletionStatus status, CompletionOp op, const FrameHeader* request);
  void FlushAll(CompletionStatus first, uint64_t culprit);

  // _send
  void Pump();
  bool PumpLane(SoftLane* lane);
  bool Fill(SoftLane* lane);
  void FillFirst(SoftLane* lane);
  bool StartNext();  // False: it must wait, or has failed.
  bool Start(SendSlot* slot, uint64_t i);
  CompletionStatus CheckLocalKeys(uint64_t i);
  void DoWindowWork(SendSlot* slot);
  void AddMessageFrame(SoftLane* lane);
  void AddReadResponse(SoftLane* lane);
  bool StripedWorkLeft() const;
  bool StripedReadLeft() const;
  FrameHeader NewHeader(FrameType type, bool first_lane);
  bool SendsWait() const;
  bool CreditDue() const;
  void OweAnswer();
  void GiveBackBatch(SoftLane* lane);

  // _receive
  bool ReadLane(SoftLane* lane);  // Returns whether any bytes came.
  ssize_t ReadSome(SoftLane* lane, size_t* wanted);
  void TakeParked();
  void LeaveLane(SoftLane* lane);
  void GiveBackStaging(SoftLane* lane);
  bool TakeStaged(SoftLane* lane);  // False: the lane must wait, or is gone.
  Taken TakeFrame(SoftLane* lane, const FrameHeader& frame);
  bool TakeProgress(const FrameHeader& frame);
  Taken TakeRequest(SoftLane* lane, const FrameHeader& frame);
  Taken TakeRead(const FrameHeader& frame);
  Taken TakeFragment(SoftLane* lane, const FrameHeader& frame);
  Taken TakeReadResponse(SoftLane* lane, const FrameHeader& frame);
  Taken TakeError(const FrameHeader& frame);
  void BeginPayload(SoftLane* lane, const FrameHeader& frame, uint64_t offset);
  int PayloadPieces(SoftLane* lane, uint64_t bytes, iovec* out, int max);
  void Land(SoftLane* lane, const uint8_t* from, uint64_t bytes);
  void EndPayload(SoftLane* lane);
  uint64_t FindSent(uint32_t sequence);
  bool PinPayload(SoftLane* lane);
  void UnpinPayload(SoftLane* lane);
  bool ConsumesReceive(const FrameHeader& frame) const;
  Taken Refuse(uint32_t sequence, WireError error);
  Taken Nonsense(const char* what);

  // Lanes, timers and breaking.
  void Attach() const;
  void Dial(SoftLane* lane);
  void RetryDial(SoftLane* lane);
  SoftHello NewHello(const SoftLane& lane);
  void SendHello(SoftLane* lane);
  bool TakeHello(SoftLane* lane, const uint8_t* bytes);
  bool Expects(const SoftHello& hello) const;
  void Answer(SoftLane* lane);
  void LookAtHeld(SoftLane* lane);
  void RaiseLane(SoftLane* lane, const SoftHello& hello);
  void DropLane(SoftLane* lane);
  void AwaitPeersKernel() const;
  void LoseLane(SoftLane* lane);
  void Lost();
  // Work `culprit` ends with `first` (the oldest, if it is kNobody); the others are flushed.
  void BreakWith(CompletionStatus first, uint64_t culprit);
  bool WaitsForPeer() const;
  bool Unreachable() const;
  void ReportFatal();

  static constexpr uint64_t kNobody = ~uint64_t{0};

  // Constant after construction.
  SoftContext* const context_;
  SoftCompletionQueue* const completions_;
  const QueuePairOptions options_;
  const uint32_t number_;
  const Token token_;
  const uint64_t receive_mask_;

  // Used by the completion queue's thread only.
  mutable bool attached_ = false;
  QueuePairState state_ = QueuePairState::kReset;
  SoftAddress peer_;
  SocketAddress peer_listener_;
  bool dialler_ = false;
  bool active_ = false;
  bool hanging_up_ = false;  // A later lane is lost; what the first one still brings is handled.
  std::vector<std::unique_ptr<SoftLane>> lanes_;

  // Requester. Of the works posted up to send_end_, [send_oldest_, send_next_) are started. There
  // are as many slots as were ever needed at once, so that an idle queue pair is small.
  uint64_t send_mask_ = 0;
  std::vector<SendSlot> send_slots_;
  std::vector<Entry> send_entries_;
  std::vector<std::unique_ptr<uint8_t[]>> inline_bytes_;  // For each slot that ever had some.
  uint64_t send_oldest_ = 0;
  uint64_t send_next_ = 0;
  uint64_t send_end_ = 0;
  uint32_t sends_held_ = 0;
  uint32_t silent_ = 0;  // Done and unsignaled; given back with the next completion.
  uint32_t next_sequence_ = 0;
  uint32_t acked_ = 0;          // Requests that the peer has executed.
  uint32_t peer_receives_ = 0;  // Receives that the peer has ever posted.
  uint32_t receives_used_ = 0;  // How many of those we have used.
  uint32_t reads_out_ = 0;

  // Responder.
  std::vector<uint64_t> receive_ids_;
  // Both are empty while all receives have no entries: those only count writes with an immediate.
  std::vector<ReceiveBody> receive_bodies_;
  std::vector<Entry> receive_entries_;
  uint64_t receive_oldest_ = 0;
  uint64_t receive_end_ = 0;
  uint32_t receives_held_ = 0;
  uint32_t receives_announced_ = 0;
  uint32_t executed_ = 0;
  uint32_t executed_announced_ = 0;
  Incoming incoming_;
  std::vector<ReadToServe> reads_;  // A ring.
  uint64_t reads_begin_ = 0;
  uint64_t reads_end_ = 0;
  uint32_t requests_taken_ = 0;   // Changes when a parked frame may go on.
  bool serve_read_next_ = false;  // Alternates between our works and the peer's READs.
  bool ack_now_ = false;
  bool in_debt_ = false;
  uint64_t delivered_turn_ = 0;

  // Timers.
  bool moved_ = false;    // Since the last OnTimer().
  bool starved_ = false;  // It waits for a receive of the peer.
  Patience for_answers_;
  Patience for_receives_;
  Patience for_connections_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_QUEUE_PAIR_H_
