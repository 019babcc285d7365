#ifndef TRYST_CHANNEL_DEVICE_DEVICE_ENGINE_H_
#define TRYST_CHANNEL_DEVICE_DEVICE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/device/peer_segments.h"
#include "channel/device/staging_pool.h"
#include "channel/poller/poller.h"
#include "gpu/copier.h"
#include "gpu/device_memory.h"
#include "gpu/gpu.h"
#include "gpu/ipc.h"
#include "rendezvous/rendezvous.h"

namespace tryst {

struct DeviceEngineOptions {
  // Pinned memory for each GPU: (serve_slots + fetch_slots) * slot_bytes. Serving and fetching have
  // a pool each, because a fetch that holds slots waits for a peer's serving slots, and the other
  // way round.
  uint64_t slot_bytes = 2 << 20;
  uint32_t serve_slots = 16;
  uint32_t fetch_slots = 16;
  uint64_t pool_bytes = uint64_t{8} << 30;  // Device memory for receives that name no destination.
  size_t mappings_kept = 64;                // Mappings of peers' allocations that nobody uses.
  // How long the poller looks for the end of a copy before it sleeps. Being woken takes the device
  // longer than most copies.
  int64_t spin_us = 200;
  // How long a kernel stands by for small copies out of other GPUs' memory, once two have come
  // within this time. It cuts their latency to a third (gpu/standby.h). 0: never.
  int64_t standby_us = 100;
  // The arena that the worker shares with others of its host; null: there is none. With it, serving
  // slots lie in the arena, and our GPU reads peers' slots in place.
  std::shared_ptr<Arena> arena;
};

// The event, if any, that the next writer of `tensor` must wait for, because the memory was used
// before.
const GpuEvent* LastUse(const Tensor& tensor);
// The memory, which an engine has allocated, may be in use until `event`, null or recorded, also
// when the last reference goes before. REQUIRES: nobody else has it yet.
void UsedUntil(const Tensor& tensor, std::shared_ptr<const GpuEvent> event);

class DeviceSelections;

// One GPU on one poller: its copies, its memory for receives, its staging, and the memory that it
// exports to other processes. Poller thread only, except where said otherwise. It outlives every
// tensor and context made from it.
class DeviceEngine final : private PollerSource, private PollerFlush {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceEngine>> Open(Poller* poller, const Gpu* gpu,
                                                            const DeviceEngineOptions& options);
  ~DeviceEngine() override;  // REQUIRES: detached.
  void Attach();
  void Detach();  // REQUIRES: idle().

  const Gpu* gpu() const { return gpu_; }
  Poller* poller() const { return poller_; }
  // Copies; see Copier::Start(). Handed to the device at the end of the turn.
  void Copy(Copier::Direction direction, void* to, const void* from, uint64_t bytes,
            const GpuEvent* after, const GpuEvent* and_after, Copier::Done done);
  // Like Copy(), for one of up to Standby::kMostWideBytes that comes from another GPU in reach; see
  // Copier::StartSmall().
  bool CopySmall(void* to, const void* from, uint64_t bytes, const GpuEvent* after,
                 const GpuEvent* and_after, Copier::Done done);
  // Many copies within the GPU at once; see Copier::StartMany().
  void CopyMany(absl::Span<const GatherPiece> pieces, Copier::Done done);
  void CopyStrided(const StridedRuns& runs, Copier::Done done);
  Copier* copier() { return copier_.get(); }
  IpcExporter* exporter() { return &exporter_; }
  IpcMappings* mappings() { return &mappings_; }
  // The GPU `ordinal` of this process has given this one peer access.
  void AddPeer(int ordinal) { peers_.insert(ordinal); }
  bool has_peer(int ordinal) const { return peers_.count(ordinal) != 0; }
  // Whether copies of this GPU can read that host memory of a peer in place.
  bool ReadsPeer(const void* data, uint64_t bytes) {
    return segments_ != nullptr && segments_->Reaches(gpu_, data, bytes);
  }
  // One line: how bytes are staged, and why not in a better way.
  std::string ExplainStaging() const;
  // Runs `fn` with a slot of the pool, now or when one is free, in the order of the calls.
  using WithSlot = absl::AnyInvocable<void(StorageRef) &&>;
  void WhenServeSlot(WithSlot fn) { WhenSlot(&serve_, std::move(fn)); }
  // Returns the number of the wait; 0: `fn` has run.
  uint64_t WhenFetchSlot(WithSlot fn) { return WhenSlot(&fetch_, std::move(fn)); }
  // `fn` of this wait, which has not run, is dropped.
  void StopWaitingForSlot(uint64_t wait);
  bool idle() const;
  uint64_t slot_bytes() const { return options_.slot_bytes; }

  // ---- Any thread ----
  // Memory of the GPU as a tensor, uninitialised. When the last reference is gone the memory goes
  // back to the pool; work that is on `stream` by then may still read it.
  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape, cuda::Stream stream);
  // Copies between this GPU and host memory of any kind, or within the GPU.
  void StartCopy(const Tensor& from, const Tensor& into, std::shared_ptr<const GpuEvent> after,
                 absl::AnyInvocable<void(absl::Status) &&> done);
  // For an allocator that is about to give memory back to its driver. Unmaps peers' memory that no
  // tensor uses, so that the peers can free it; peers unmap ours when they next fetch from it.
  // Returns how many mappings went. Waits for the poller, but not for a stuck one. Not on the
  // poller thread.
  size_t ReleaseMappings();
  // Returns an event of a pool that is recorded on the stream; null: all work of the stream has
  // ended.
  absl::StatusOr<std::shared_ptr<const GpuEvent>> Mark(cuda::Stream stream);

  CopierCounters counters() const { return copier_->counters(); }
  DeviceSelections* selections() const { return selections_.get(); }

 private:
  friend const GpuEvent* LastUse(const Tensor& tensor);
  friend void UsedUntil(const Tensor& tensor, std::shared_ptr<const GpuEvent> event);
  class BlockStorage;
  struct StagedCopy;
  struct SlotLine {
    std::shared_ptr<StagingPool> pool;
    std::deque<std::pair<uint64_t, WithSlot>> line;  // By the numbers of the waits.
  };
  struct RoomTask final : PollerTask {
    void RunOnPoller() override;
    DeviceEngine* engine = nullptr;
    std::atomic<bool> posted{false};
  };

  DeviceEngine(Poller* poller, const Gpu* gpu, const DeviceEngineOptions& options);
  bool Poll() override;
  Sight Glance() override;
  void Arm() override { copier_->Arm(); }
  int event_fd() const override { return copier_->event_fd(); }
  void Flush() override;
  uint64_t WhenSlot(SlotLine* line, WithSlot fn);
  void OnRoom(SlotLine* line);
  void StepStagedCopy(const std::shared_ptr<StagedCopy>& copy);

  Poller* const poller_;
  const Gpu* const gpu_;
  const DeviceEngineOptions options_;
  std::unique_ptr<Copier> copier_;
  DevicePool pool_;
  std::unique_ptr<DeviceSelections> selections_;
  IpcExporter exporter_;
  IpcMappings mappings_;
  std::shared_ptr<PeerSegments> segments_;  // Null: no arena.
  std::set<int> peers_;
  std::string staging_;  // For ExplainStaging().
  SlotLine serve_;
  SlotLine fetch_;
  RoomTask room_task_;
  uint64_t last_wait_ = 0;
  bool attached_ = false;
  int64_t quiet_since_ns_ = 0;  // 0: something moved.
  int64_t longest_ns_ = 0;      // How long the largest copy under way may take.
  int64_t small_at_ns_ = 0;     // The last small copy.
  int64_t wide_at_ns_ = 0;      // The last one that one block does not take.
  bool stand_by_ = false;       // Stand by at the end of this turn.
  bool stand_wide_ = false;

  Mutex events_mu_;
  std::vector<GpuEvent> free_events_ ABSL_GUARDED_BY(events_mu_);
};

// What a caller says of a device tensor (device_context of its args): its GPU, its stream, and a
// moment of the stream, which is when this object was made.
//   Send: the moment after the work that fills the tensor was queued. Bytes are read once the
//     stream is there; the host does not wait.
//   Receive: the moment after the last work that uses the destination was queued.
class GpuContext final : public DeviceContext, private SelectionCopier {
 public:
  struct Options {
    // A receive ends as soon as `stream` is made to wait for the bytes, which come later. Only work
    // queued on that stream may use them. A copy that fails afterwards is only logged.
    bool complete_on_stream = false;
    // The caller knows, for instance from waiting, that all of the stream's work that matters has
    // ended. This saves a call to the driver, which takes more than a microsecond.
    bool is_there = false;
  };
  // `engine` outlives it. A null stream is the device's default one.
  static absl::StatusOr<std::shared_ptr<GpuContext>> Make(DeviceEngine* engine, cuda::Stream stream,
                                                          Options options);
  static absl::StatusOr<std::shared_ptr<GpuContext>> Make(DeviceEngine* engine,
                                                          cuda::Stream stream) {
    return Make(engine, stream, Options());
  }

  DeviceEngine* engine() const { return engine_; }
  cuda::Stream stream() const { return stream_; }
  const GpuEvent* moment() const { return moment_.get(); }
  bool complete_on_stream() const { return options_.complete_on_stream; }

  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                  const AllocatorAttributes& attributes) override;
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override;
  void WhenSent(const DeviceContext* receiver,
                absl::AnyInvocable<void(absl::Status) &&> fn) override;
  SelectionCopier* selection_copier() override { return this; }

 private:
  absl::StatusOr<Gathered> Gather(const Tensor& tensor, const Selection& selection,
                                  uint64_t bytes) override;
  void StartScatter(const Tensor& dense, const Tensor& into, const Selection& selection,
                    absl::AnyInvocable<void(absl::Status) &&> done) override;

  GpuContext(DeviceEngine* engine, cuda::Stream stream, Options options,
             std::shared_ptr<const GpuEvent> moment)
      : engine_(engine), stream_(stream), options_(options), moment_(std::move(moment)) {}
  DeviceEngine* const engine_;
  const cuda::Stream stream_;
  const Options options_;
  const std::shared_ptr<const GpuEvent> moment_;
};

inline cuda::Address AddressOf(const void* data) { return reinterpret_cast<cuda::Address>(data); }

}  // namespace tryst

#endif  // TRYST_CHANNEL_DEVICE_DEVICE_ENGINE_H_
