#ifndef TRYST_VERBS_IBV_IBV_QUEUE_PAIR_H_
#define TRYST_VERBS_IBV_IBV_QUEUE_PAIR_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "verbs/ibv/ibv_completion_queue.h"
#include "verbs/ibv/ibv_device.h"
#include "verbs/ibv/ibv_port.h"
#include "verbs/ibv/queue_pair_address.h"
#include "verbs/nic.h"

namespace tryst {

// The works of one direction, oldest first. A work's sequence number is in its verbs id. So a
// completion retires that work and, as verbs does for sends, the unsignaled ones before it.
class WorkLedger {
 public:
  explicit WorkLedger(uint32_t depth);

  uint32_t outstanding() const { return next_ - oldest_; }
  uint32_t room() const { return depth_ - outstanding(); }
  uint32_t next() const { return next_; }
  uint64_t& id(uint32_t sequence) { return ids_[sequence & mask_]; }
  void Post(uint32_t count) { next_ += count; }
  // False: it is not outstanding.
  bool Retire(uint32_t sequence) {
    if (sequence - oldest_ >= next_ - oldest_) return false;
    oldest_ = sequence + 1;
    return true;
  }
  // The marker has come back, and with it everything before it.
  void RetireAll() { oldest_ = next_; }

 private:
  const uint32_t depth_;
  const uint32_t mask_;
  std::vector<uint64_t> ids_;
  uint32_t oldest_ = 0;
  uint32_t next_ = 0;
};

// How it learns that it has drained: works that were unsignaled and successful before the break
// leave no trace, and a queue without works has nothing to flush. So after the break one marker is
// posted to each queue. It can only be flushed, and in order. When it comes back, every work before
// it has come back, and by PCIe's ordering every byte of the peer that came before it has landed.
class IbvQueuePair final : public QueuePair {
 public:
  static constexpr uint32_t kMaxSlot = (1u << 16) - 1;
  static uint32_t SlotOf(uint64_t verbs_id) { return static_cast<uint32_t>(verbs_id >> 48); }

  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(IbvDevice* device,
                                                           const QueuePairOptions& options,
                                                           const std::string& sysfs_root);
  ~IbvQueuePair() override;

  uint32_t number() const override { return pair_->qp_num; }
  QueuePairState state() const override;
  std::string LocalAddress() const override;
  absl::Status Connect(absl::string_view remote_address) override;
  absl::Status PostSend(absl::Span<const SendWork> works) override;
  absl::Status PostReceive(absl::Span<const ReceiveWork> works) override;
  uint32_t send_room() const override { return sends_.room(); }
  uint32_t receive_room() const override { return receives_.room(); }
  void Break() override;

  // For the completion queue. False: the completion is not for the caller, because it is a marker's
  // or not outstanding.
  bool OnCompletion(const ibv_wc& work, Completion* out);

 private:
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 47;
  static constexpr uint64_t kMarkerBit = uint64_t{1} << 46;

  IbvQueuePair(IbvDevice* device, const QueuePairOptions& options, IbvPort port, ibv_qp* pair,
               uint32_t slot);
  uint64_t VerbsId(uint64_t bits, uint32_t sequence) const {
    return (static_cast<uint64_t>(slot_) << 48) | bits | sequence;
  }

  absl::Status ToInitialized();
  absl::Status ToReadyToReceive(const QueuePairAddress& peer);
  absl::Status ToReadyToSend(const QueuePairAddress& peer);
  absl::Status AgreeOnExtensions(const QueuePairAddress& peer);
  void FillPath(const QueuePairAddress& peer, ibv_ah_attr* path) const;

  absl::Status CheckSend(const SendWork& work) const;
  absl::Status CheckEntries(absl::Span<const Entry> entries, uint64_t* bytes) const;
  void FillSend(const SendWork& work, uint32_t sequence, ibv_send_wr* out, ibv_sge* entries);
  void FillBatch(absl::Span<const SendWork> works);
  absl::Status OnRefused(int returned, absl::string_view call, size_t posted);
  void StartBreak(absl::Status cause);
  absl::Status ToError();
  absl::Status PostMarkers();

  IbvDevice* const device_;
  IbvCompletionQueue* const completions_;
  const QueuePairOptions options_;
  const IbvPort port_;
  ibv_qp* const pair_;
  const uint32_t slot_;
  const uint32_t max_inline_bytes_;
  QueuePairAddress local_;

  QueuePairState state_ = QueuePairState::kReset;  // Never kDrained; see state().
  bool marked_ = false;                            // The markers were posted.
  // The first flushed receive, or the marker, has come back.
  bool receive_flushed_ = false;
  absl::Status cause_;  // The first error that broke it.
  WorkLedger sends_;
  WorkLedger receives_;
  // Room for a whole batch, allocated once, so that posting allocates nothing.
  std::vector<ibv_send_wr> send_batch_;
  std::vector<ibv_recv_wr> receive_batch_;
  std::vector<ibv_sge> send_entries_;
  std::vector<ibv_sge> receive_entries_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_QUEUE_PAIR_H_
