#ifndef TRYST_GPU_COPIER_H_
#define TRYST_GPU_COPIER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu/gather.h"
#include "gpu/gpu.h"
#include "gpu/pinned_memory.h"
#include "gpu/standby.h"

namespace tryst {

struct CopierCounters {
  uint64_t copies = 0;
  uint64_t bytes = 0;
  uint64_t submissions = 0;  // Calls to the driver; many small pieces are one.
  // Copies held back on the host, because no stream was free to wait for their data.
  uint64_t waited_on_host = 0;
  uint64_t by_standby = 0;  // Copies without any call to the driver.
};

// Copies of one GPU. In each direction they run in the order of their start, but no copy waits for
// one whose data is not there yet. A small copy is a kernel that writes its end into host memory,
// which saves half of the driver's calls and all polling of the driver. One thread; no call here
// waits for the device.
//
// Pieces within the GPU (or from a peer GPU's memory) are collected until Flush(), which
// the owner calls at the end of its turn: many small ones then cost one kernel. What was held back
// on the host is submitted by the Poll() that finds its data there.
class Copier {
 public:
  // kOnDevice: kernels of this GPU reach both ends. kFromPeer: they may not, for instance because
  // the other GPU gave no peer access; then the driver copies.
  enum class Direction { kToHost, kToDevice, kOnDevice, kFromPeer };
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // `linger_ns`: how long a kernel stands by for the next small copy (Standby); 0: never.
  static absl::StatusOr<std::unique_ptr<Copier>> Create(const Gpu* gpu, uint64_t linger_ns = 0);
  ~Copier();  // REQUIRES: idle().
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Host memory must be pinned, or the call may wait. `after`, the marks that the copy
  // follows, each null or recorded, last until `done`. `done` runs from Poll(), or from
  // Flush() when the copy could not be started.
  void Start(Direction direction, cuda::Address to, cuda::Address from, uint64_t bytes,
             std::array<const GpuEvent*, 2> after, Done done);
  // Like Start(kOnDevice), by the standby kernel. False: it does not run or has no room. The copy
  // does not wait for Flush(), and JoinStream() does not include it.
  bool StartSmall(cuda::Address to, cuda::Address from, uint64_t bytes,
                  std::array<const GpuEvent*, 2> after, Done done);
  // More small copies are likely soon: launches the standby kernel, for larger ones if `wide`.
  void StandBy(bool wide);
  // Copies all `pieces` within the GPU with as few submissions as their sizes allow. REQUIRES:
  // their data is there, and they do not overlap.
  void StartMany(absl::Span<const GatherPiece> pieces, Done done);
  // Copies all `runs` within the GPU. REQUIRES: as StartMany(). kUnimplemented: kernel() is null.
  void StartStrided(const StridedRuns& runs, Done done);
  // Runs `done` from Poll() when `event` is reached; at once if `event` is null.
  void WhenThere(const GpuEvent* event, Done done);
  // Submits everything that was collected.
  void Flush();
  // Runs `done` of copies that have ended; true if there was one.
  bool Poll();
  // What a few loads show of small copies. kEnded: Poll() will run a `done`.
  enum class Sight { kNone, kRunning, kEnded };
  Sight Glance() const;
  bool idle() const { return outstanding_ == 0; }
  size_t outstanding() const { return outstanding_; }

  // Makes `stream` wait, on the device, for all copies of `direction` started so far and
  // flushed that were not held back on the host. False: one is still held back.
  absl::StatusOr<bool> JoinStream(Direction direction, cuda::Stream stream);

  // For an owner that is about to sleep: submits what was collected, and afterwards event_fd()
  // becomes readable when a copy may have ended. Call it again after each wake-up.
  void Arm();
  int event_fd() const { return event_fd_; }
  const CopierCounters& counters() const { return counters_; }
  const Gpu* gpu() const { return gpu_; }
  const GatherKernel* kernel() const { return gather_.get(); }  // Null: this GPU cannot run it.

 private:
  static constexpr size_t kDirections = 4;
  // The first is for copies whose data is there; the others wait for it.
  static constexpr size_t kLanes = 4;
  struct Copy {
    Direction direction = Direction::kToHost;
    cuda::Address to = 0;
    cuda::Address from = 0;
    uint64_t bytes = 0;
    std::array<const GpuEvent*, 2> after{};
    Done done;
  };
  struct Batch {
    // Why not all of it could be started. It ends when its lane's stream is idle: what was started
    // may still move.
    absl::Status failed;
    GpuEvent event;
    // Not 0: the copy ends when the lane's flag has this value, and has no event.
    uint64_t mark = 0;
    std::vector<Copy> copies;
    GatherList gathered;
  };
  // What a host function behind a stream's work is told.
  struct WakeUp {
    int event_fd = -1;
    std::atomic<bool> came{false};
  };
  struct Lane {
    GpuStream stream;
    uint64_t* flag = nullptr;  // In flags_.
    uint64_t last_mark = 0;
    uint32_t asked = 0;  // How often `flag` was read in vain.
    GpuEvent join;
    std::deque<std::unique_ptr<Batch>> running;
    uint64_t started = 0;  // Batches ever,
    uint64_t armed = 0;    // and how many of them a wake-up stands behind.
    WakeUp wake_up;
  };
  struct Watch {
    const GpuEvent* event = nullptr;
    Done done;
  };

  explicit Copier(const Gpu* gpu) : gpu_(gpu) {}
  absl::StatusOr<bool> AllThere(const Copy& copy) const;
  bool TryStart(Copy* copy);
  void Submit(Lane* lane, std::unique_ptr<Batch> batch);
  absl::Status Enqueue(Lane* lane, Batch* batch);
  absl::Status EnqueueAll(Lane* lane, Batch* batch);
  bool EndStanding();
  absl::StatusOr<bool> Ended(Lane* lane, const Batch& batch);
  bool EndBatch(std::unique_ptr<Batch> batch, const absl::Status& status);
  absl::Status EnqueueMany(Lane* lane, Batch* batch, absl::Span<const GatherPiece> pieces);
  void StartWhole(absl::FunctionRef<absl::Status(Lane* lane, Batch* batch)> enqueue, Done done);
  std::unique_ptr<Batch> TakeBatch();
  std::array<Lane, kLanes>& lanes(Direction direction) {
    return lanes_[static_cast<size_t>(direction)];
  }
  static void OnWake(void* wake_up);

  const Gpu* const gpu_;
  int event_fd_ = -1;
  std::unique_ptr<GatherKernel> gather_;  // Null: this GPU cannot run it.
  PinnedMemory flags_;                    // A cache line for each lane.
  std::array<std::array<Lane, kLanes>, kDirections> lanes_;
  std::array<std::deque<Copy>, kDirections> held_back_;
  std::vector<Copy> collected_;       // kOnDevice, ready, until Flush().
  std::unique_ptr<Standby> standby_;  // Null: none.
  // The copies given to the standby kernel; the last has number last_standing_.
  std::deque<Copy> standing_;
  uint64_t last_standing_ = 0;
  WakeUp standing_wake_up_;
  uint32_t standing_asked_ = 0;  // How often none of them had ended.
  absl::Status standby_failed_;  // It is used no more.
  std::vector<Watch> watches_;
  std::vector<std::unique_ptr<Batch>> free_;
  size_t outstanding_ = 0;
  CopierCounters counters_;
};

}  // namespace tryst

#endif  // TRYST_GPU_COPIER_H_
