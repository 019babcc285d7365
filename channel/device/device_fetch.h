#ifndef TRYST_CHANNEL_DEVICE_DEVICE_FETCH_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_FETCH_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "channel/device/chunk_mail.h"
#include "channel/device/device_fetcher.h"
#include "rendezvous/cancellation.h"

namespace tryst {

// One fetch into device memory, from Begin() to its end.
class DeviceFetcher::Op final : public LinedFetch, private ProofWaiter {
 public:
  Op(DeviceFetcher* owner, int64_t its_step, const TensorKey& its_key, const RecvArgs& its_args,
     FetchedFn done)
      : owner_(owner),
        step(its_step),
        key(its_key),
        args(its_args),
        context(std::static_pointer_cast<GpuContext>(its_args.device_context)),
        engine(context->engine()),
        done_(std::move(done)) {}
  ~Op() override { TRYST_CHECK(ended_ && pending_ == 0); }

  void Start();
  void OnTurn(const DeviceManifest* met) override;
  // The fetch's step was aborted.
  void Abort(const absl::Status& status) {
    aborted_ = true;
    if (!reported_) Fail(status);
  }

 private:
  DeviceFetcher* const owner_;

 public:
  const int64_t step;
  const TensorKey key;
  const RecvArgs args;
  const std::shared_ptr<GpuContext> context;
  DeviceEngine* const engine;
  DeviceManifest manifest;
  std::list<std::unique_ptr<Op>>::iterator self;

 private:
  // Chunks of virtual memory that the producer has sent and that are not mapped yet.
  struct Handed {
    std::unique_ptr<ChunkMailbox> mailbox;
    std::vector<OfferedChunk> chunks;
  };

  void OnProof() override {
    StopWaitingForProof();
    BringBestWay();
  }
  RecvArgs InnerArgs(Tensor destination, bool prefers_view);
  DeviceWay* WayOf(bool direct) { return owner_->ways_.Find(manifest, *engine, direct); }
  // The state of the way. While it is being proved the fetch waits.
  DeviceWay::State StateOf(bool direct);
  void FetchPart(const absl::StatusOr<TensorKey>& part, Tensor destination, bool prefers_view,
                 absl::AnyInvocable<void(absl::Status, Tensor, bool) &&> done);
  void OnManifest(absl::Status status, Tensor answer, bool is_dead);
  void BringTransfer();
  absl::Status ChooseDestination();
  void BringInside(const Tensor& answer);
  void FailAndKeep(const Tensor& answer, const absl::Status& why);
  void BringBestWay();
  bool InThisProcess() const;
  void BringIpc();
  void BringChunks();
  void AskForChunks();
  void OnChunksAnswered(const absl::Status& status);
  void StageForOnce(const absl::Status& why);
  void CopyFrom(const void* from, Copier::Direction direction);
  bool IsSmallAndFar() const;
  bool CopyInSmall(const void* from, Copier::Done done);
  void BringView(const void* from);
  void BringDirect();
  void FetchDirect();
  void OnDirect(const absl::Status& status, const Tensor& landed);
  void BringStaged();
  void OnIpcCopied(absl::Status status);
  // Whether the producer may have let go of the tensor since it said where it lies.
  bool MayBeGone() const {
    return owner_->poller_->clock().NowNs() - manifest.asked_ns >
           owner_->options_.trust_ms * 1'000'000;
  }
  void AskWhetherKept(absl::AnyInvocable<void() &&> kept);
  // Runs `fn` with a staging slot, unless the fetch ends before.
  void WhenSlot(DeviceEngine::WithSlot fn);
  void StopWaitingForSlots();
  void OnDestinationFree(const absl::Status& status);
  void MoreChunks();
  void OnChunk(uint64_t chunk, uint64_t bytes, StorageRef slot, absl::Status status, Tensor landed);
  // Copies into the destination, and counts the copy in pending_ until its end.
  void CopyIn(Copier::Direction direction, uint64_t at, const void* from, uint64_t bytes,
              Copier::Done done);
  void Fail(const absl::Status& status);
  void AllStarted();
  void EndIfDone();
  void StopWaitingForProof();
  void Report(absl::Status status, Tensor tensor, bool is_dead);
  void EndCancellation();

  FetchedFn done_;
  Cancellation inner_;  // Cancels the fetches that this one makes.
  Cancellation::Token token_ = Cancellation::kNoToken;
  std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
  absl::Status status_;
  Tensor into_;
  IpcMappings::Mapping* mapping_ = nullptr;
  Handed handed_;
  uint64_t chunks_ = 0;
  uint64_t next_chunk_ = 0;
  uint32_t in_flight_ = 0;
  uint64_t copies_begun_ = 0;  // Copies of chunks into the destination that have begun.
  bool is_view_ = false;       // The view has taken over the mapping and the lease.
  bool started_ = false;       // Every copy has begun.
  bool committed_ = false;     // Everything has come: too late to cancel.
  bool reported_ = false;
  bool ended_ = false;
  bool is_gone_ = false;   // The producer does not keep the tensor, as far as can be told.
  bool aborted_ = false;   // With its step.
  bool was_kept_ = false;  // Its answer is one that an earlier fetch could not use.
  int pending_ = 0;        // Fetches, copies and probes that will still call this object.
  std::vector<uint64_t> slot_waits_;
  std::shared_ptr<Op*> destination_wait_;  // BringDirect() sets it; it holds this.
  int64_t asked_ns_ = 0;                   // When the manifest was asked for.
  // Ends it at its deadline while no fetch that it makes does.
  struct LateTimer final : PollerTimer {
    explicit LateTimer(Op* op) : op(op) {}
    void OnTimer() override;
    Op* const op;
  };
  DeviceWay* probed_ = nullptr;  // The way whose proof it waits for.
  LateTimer late_timer_{this};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_FETCH_H_
