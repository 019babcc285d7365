#ifndef TRYST_VERBS_OFI_OFI_QUEUE_PAIR_H_
#define TRYST_VERBS_OFI_OFI_QUEUE_PAIR_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_completion_queue.h"
#include "verbs/ofi/ofi_device.h"
#include "verbs/ofi/ofi_endpoint.h"
#include "verbs/ofi/ofi_frame.h"
#include "verbs/ofi/ofi_receives.h"
#include "verbs/patience.h"

namespace tryst {

// A queue pair over an endpoint that has no connections: what a connection promises is made
// here. Works wait until the peer has greeted (so both know each other), complete in the order
// of posting, and fail when nothing completes for too long. The first failure closes the
// endpoint, and with it every access to our memory; the peer is told, if it can be. One thread.
class OfiQueuePair final : public QueuePair {
 public:
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(OfiDevice* device,
                                                           const QueuePairOptions& options);
  ~OfiQueuePair() override;

  uint32_t number() const override { return number_; }
  QueuePairState state() const override;
  std::string LocalAddress() const override;
  absl::Status Connect(absl::string_view remote_address) override;
  absl::Status PostSend(absl::Span<const SendWork> works) override;
  absl::Status PostReceive(absl::Span<const ReceiveWork> works) override;
  uint32_t send_room() const override { return options_.send_depth - sends_used_; }
  uint32_t receive_room() const override { return options_.receive_depth - receives_used_; }
  void Break() override;
  // What is posted is carried on by Progress() alone.
  bool sends_wait_for_poll() const override { return head_ != tail_; }

  // ---- For its completion queue ----
  void Progress();
  void OnPolled(uint32_t credits);
  bool MaySleep() const { return endpoint_->closed() || endpoint_->MaySleep(); }
  // When Progress() has something to do though no descriptor says so.
  int64_t NextLookNs(int64_t now_ns) const;

 private:
  struct Work {
    OfiContext context;
    uint64_t id = 0;
    SendOp op = SendOp::kWrite;
    bool signaled = true;
    bool fence = false;
    bool done = false;
    CompletionStatus status = CompletionStatus::kOk;
    uint32_t vendor_error = 0;
    uint32_t pieces = 0;  // Of memory, at PiecesOf().
    uint32_t immediate = 0;
    uint32_t remote_key = 0;
    uint64_t remote_address = 0;
    uint64_t bytes = 0;
    uint64_t sent = 0;        // Of a send, in frames.
    uint32_t frames_out = 0;  // Of it, under way.
  };
  struct FrameOut {
    OfiContext context;
    bool busy = false;
    uint64_t work = kNoWork;  // What it carries a part of.
  };
  // What came while there was no receive for it.
  struct Arrival {
    int frame = -1;  // Of the frames that came in; or an immediate.
    uint32_t immediate = 0;
    uint64_t bytes = 0;
  };

  OfiQueuePair(OfiDevice* device, const QueuePairOptions& options);
  absl::Status Open();

  // Works (ofi_queue_pair_post.cc).
  absl::Status CheckWork(const SendWork& work) const;
  void Queue(const SendWork& work);
  void Issue();
  int64_t IssueOne(Work* work, uint64_t index);
  int64_t IssueFrames(Work* work, uint64_t index);
  int64_t PostFrame(const OfiFrame& frame, const void* payload, uint64_t work);
  void CopyPieces(const Work& work, uint64_t index, uint64_t from, uint64_t count,
                  uint8_t* out) const;
  iovec* PiecesOf(uint64_t index) { return &pieces_[index % works_.size() * options_.max_entries]; }
  const iovec* PiecesOf(uint64_t index) const {
    return &pieces_[index % works_.size() * options_.max_entries];
  }
  Work& WorkAt(uint64_t index) { return works_[index % works_.size()]; }
  void Retire();
  void FailOldest(CompletionStatus status, uint32_t vendor_error);

  // What comes (ofi_queue_pair_progress.cc).
  void Collect();
  void OnEnd(const fi_cq_data_entry& end);
  void OnError(const fi_cq_err_entry& error);
  void OnFrameSent(FrameOut* frame);
  void OnFrame(uint32_t index, size_t bytes);
  void OnHello(const OfiFrame& frame, const uint8_t* payload);
  void OnArrival(const Arrival& arrival);
  bool Deliver(const Arrival& arrival);
  void DeliverWaiting();
  void PostFrameIn(uint32_t index);
  void Greet(int64_t now_ns);
  void SayBye();
  void CloseDown();
  void Complete(Completion completion, uint32_t credits);
  uint8_t* FrameIn(uint32_t index) { return &memory_[index * kOfiFrameBytes]; }
  uint8_t* FrameOutBytes(size_t index);
  uint8_t* InlineOf(uint64_t index);

  static constexpr uint64_t kNoWork = ~uint64_t{0};
  static constexpr uint32_t kFramesIn = 8;
  static constexpr uint32_t kFramesOut = 4;
  static constexpr size_t kMaxHeard = 8;
  static constexpr size_t kMaxWaiting = 16384;

  // Constant after Open().
  OfiDevice* const device_;
  const QueuePairOptions options_;
  OfiCompletionQueue* const completions_;
  const uint32_t number_;
  uint64_t token_ = 0;
  bool added_ = false;
  std::unique_ptr<OfiEndpoint> endpoint_;
  // [frames in][frames out][inline bytes of each work]
  std::vector<uint8_t> memory_;
  std::unique_ptr<Region> region_;  // Over it, where providers want one.
  void* descriptor_ = nullptr;

  bool connected_ = false;
  bool broken_ = false;
  bool greeted_ = false;     // Our hello is under way, or there.
  bool peer_ready_ = false;  // Its hello has come.
  bool peer_gone_ = false;   // Its bye has.
  bool bye_said_ = false;
  bool stalled_ = false;  // The provider takes no more now.
  bool failed_ =
      false;  // A work has: nothing goes out any more, the queue pair breaks in its turn.
  int64_t greet_again_ns_ = 0;
  int64_t linger_until_ns_ = 0;
  uint64_t peer_token_ = 0;
  std::vector<uint64_t> heard_;  // Tokens of hellos that came before Connect().
  Patience patience_;

  // Works, counted from 0: [head_, issue_) are with the provider, [issue_, tail_) wait.
  std::vector<Work> works_;
  std::vector<iovec> pieces_;
  std::vector<void*> piece_descriptors_;
  uint64_t head_ = 0;
  uint64_t issue_ = 0;
  uint64_t tail_ = 0;
  uint32_t reads_out_ = 0;
  uint32_t silent_ = 0;      // Ended, unsignaled, and not yet covered by a signaled one.
  uint32_t sends_used_ = 0;  // Places of the queue; a completion that is polled gives back.
  uint32_t receives_used_ = 0;
  uint32_t unpolled_ = 0;
  FrameOut frames_out_[kFramesOut];
  OfiContext frames_in_[kFramesIn];
  OfiReceives receives_;
  std::deque<Arrival> waiting_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_QUEUE_PAIR_H_
