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
#include "verbs/ofi/ofi_frames.h"
#include "verbs/ofi/ofi_receives.h"
#include "verbs/ofi/ofi_tokens.h"
#include "verbs/ofi/ofi_works.h"
#include "verbs/patience.h"

namespace tryst {

// A queue pair over an endpoint without connections, so it implements what a connection promises.
// Works wait until the peer has greeted, so that both know each other. They complete in the order
// of posting, and fail if nothing completes for too long. The first failure closes the endpoint,
// and with it every access to our memory; the peer is told, if possible. Used by one thread.
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
  // Only Progress() carries on what was posted.
  bool sends_wait_for_poll() const override { return !works_.empty(); }

  // ---- For its completion queue ----
  void Progress();
  void OnPolled(uint32_t credits);
  bool MaySleep() const { return endpoint_->closed() || endpoint_->MaySleep(); }
  // When Progress() has something to do although no descriptor tells.
  int64_t NextLookNs(int64_t now_ns) const;

 private:
  // Something that came while there was no receive for it.
  struct Arrival {
    int frame = -1;  // The index of a received frame; otherwise it is an immediate.
    uint32_t immediate = 0;
    uint64_t bytes = 0;
  };

  OfiQueuePair(OfiDevice* device, const QueuePairOptions& options);
  absl::Status Open();

  // Works (ofi_queue_pair_post.cc).
  absl::Status CheckWork(const SendWork& work) const;
  void Issue();
  int64_t IssueOne(OfiWork* work, uint64_t index);
  int64_t IssueFrames(OfiWork* work, uint64_t index);
  int64_t PostFrame(const OfiFrame& frame, const void* payload, uint64_t work);
  void Retire();
  void FailOldest(CompletionStatus status, uint32_t vendor_error);

  // Receiving (ofi_queue_pair_progress.cc).
  void Collect();
  void OnEnd(const fi_cq_data_entry& end);
  void OnError(const fi_cq_err_entry& error);
  void OnFrameSent(OfiFrames::Out* frame);
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

  static constexpr size_t kMaxWaiting = 16384;

  // Constant after Open().
  OfiDevice* const device_;
  const QueuePairOptions options_;
  OfiCompletionQueue* const completions_;
  const uint32_t number_;
  bool added_ = false;
  std::unique_ptr<OfiEndpoint> endpoint_;
  OfiFrames frames_;  // And the inline bytes of each work.

  bool connected_ = false;
  bool broken_ = false;
  bool greeted_ = false;    // Our hello is under way, or has arrived.
  bool peer_gone_ = false;  // The peer's bye has come.
  bool bye_said_ = false;
  bool stalled_ = false;  // The provider accepts no more at present.
  bool failed_ =
      // A work has failed: nothing is sent any more, and the queue pair breaks when that work is
      // the oldest.
      false;
  int64_t greet_again_ns_ = 0;
  int64_t linger_until_ns_ = 0;
  OfiTokens tokens_;
  Patience patience_;

  OfiWorks works_;
  uint32_t silent_ = 0;      // Ended, unsignaled, and not yet covered by a signaled one.
  uint32_t sends_used_ = 0;  // Entries of the queue in use; polling a completion frees them.
  uint32_t receives_used_ = 0;
  uint32_t unpolled_ = 0;
  OfiReceives receives_;
  std::deque<Arrival> waiting_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_QUEUE_PAIR_H_
