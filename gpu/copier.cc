#include "gpu/copier.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tryst {
namespace {

// With kGatherPieces pieces or more, each of at most kGatherPieceBytes, one kernel is quicker than
// one copy for each piece.
constexpr size_t kGatherPieces = 4;
constexpr uint64_t kGatherPieceBytes = 1 << 20;
constexpr size_t kBatchesKept = 64;
// Up to here one block of threads is done before a copy engine has begun.
constexpr uint64_t kKernelBytes = 64 << 10;
constexpr uint64_t kFlagBytes = 64;
// A kernel that faults writes no flag: the driver is asked now and then, which costs it time
// that the next copy's start then waits for.
constexpr uint32_t kLooksPerQuery = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Copier>> Copier::Create(const Gpu* gpu, uint64_t linger_ns) {
  std::unique_ptr<Copier> copier(new Copier(gpu));
  auto flags = PinnedMemory::Allocate(gpu, kDirections * kLanes * kFlagBytes);
  if (!flags.ok()) return flags.status();
  copier->flags_ = *std::move(flags);
  char* flag = static_cast<char*>(copier->flags_.data());
  for (auto& lanes : copier->lanes_) {
    for (Lane& lane : lanes) {
      auto stream = gpu->MakeStream();
      if (!stream.ok()) return stream.status();
      lane.stream = *std::move(stream);
      lane.flag = reinterpret_cast<uint64_t*>(flag);
      *lane.flag = 0;
      flag += kFlagBytes;
    }
  }
  auto gather = GatherKernel::Load(gpu);
  if (gather.ok()) {
    copier->gather_ = *std::move(gather);
    if (linger_ns > 0) {
      auto standby = Standby::Create(gpu, copier->gather_.get(), linger_ns);
      if (!standby.ok()) return standby.status();
      copier->standby_ = *std::move(standby);
    }
  } else if (!absl::IsUnimplemented(gather.status())) {
    TRYST_LOG(Warning)
        << "small GPU tensors are copied one by one instead of together, which is slower: "
        << gather.status();
  }
  copier->event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (copier->event_fd_ < 0)
    return absl::ResourceExhaustedError(
        "the process has no file descriptor left for copies to and from a GPU: raise the limit of "
        "open files (ulimit -n)");
  return copier;
}

Copier::~Copier() {
  TRYST_CHECK(idle()) << outstanding_ << " copies are still on their way";
  // A wake-up may still stand behind the last copy, and would write our descriptor.
  for (auto& lanes : lanes_) {
    for (Lane& lane : lanes) {
      if (lane.stream.get() != nullptr) (void)gpu_->WaitFor(lane.stream.get());
    }
  }
  standby_.reset();  // It waits, too.
  if (event_fd_ >= 0) close(event_fd_);
}

absl::StatusOr<bool> Copier::AllThere(const Copy& copy) const {
  for (const GpuEvent* event : copy.after) {
    if (event == nullptr) continue;
    absl::StatusOr<bool> there = event->Done();
    if (!there.ok() || !*there) return there;
  }
  return true;
}

void Copier::Start(Direction direction, cuda::Address to, cuda::Address from, uint64_t bytes,
                   std::array<const GpuEvent*, 2> after, Done done) {
  ++outstanding_;
  ++counters_.copies;
  counters_.bytes += bytes;
  Copy copy{direction, to, from, bytes, after, std::move(done)};
  std::deque<Copy>& line = held_back_[static_cast<size_t>(direction)];
  if (TryStart(&copy)) return;
  ++counters_.waited_on_host;
  line.push_back(std::move(copy));
}

// What is ready goes to the first lane; what is not waits for its marks on a lane where
// it holds up nobody. False: there is none now.
bool Copier::TryStart(Copy* copy) {
  const absl::StatusOr<bool> there = AllThere(*copy);
  const bool ready = there.ok() && *there;
  if (ready && copy->direction == Direction::kOnDevice) {
    collected_.push_back(std::move(*copy));
    return true;
  }
  std::array<Lane, kLanes>& all = lanes(copy->direction);
  Lane* lane = &all[0];
  if (there.ok() && !ready) {
    auto idle = std::find_if(all.begin() + 1, all.end(),
                             [](const Lane& lane) { return lane.running.empty(); });
    if (idle == all.end()) return false;
    lane = &*idle;
  }
  std::unique_ptr<Batch> batch = TakeBatch();
  batch->copies.push_back(std::move(*copy));
  batch->failed = there.status();
  Submit(lane, std::move(batch));
  return true;
}

bool Copier::StartSmall(cuda::Address to, cuda::Address from, uint64_t bytes,
                        std::array<const GpuEvent*, 2> after, Done done) {
  const GatherPiece piece{to, from, bytes};
  Copy copy{Direction::kOnDevice, to, from, bytes, after, nullptr};
  const bool stands = standby_ != nullptr && standby_failed_.ok() && standby_->Takes(piece);
  absl::StatusOr<bool> there = stands ? AllThere(copy) : false;
  if (!there.ok() || !*there) {
    Start(Direction::kOnDevice, to, from, bytes, after, std::move(done));
    return false;
  }
  ++outstanding_;
  ++counters_.copies;
  ++counters_.by_standby;
  counters_.bytes += bytes;
  copy.done = std::move(done);
  standing_.push_back(std::move(copy));
  last_standing_ = standby_->Copy(piece);
  return true;
}

void Copier::StandBy(bool wide) {
  if (standby_ == nullptr || !standby_failed_.ok()) return;
  // Copies go another way without it, and meet the error themselves if it lasts.
  (void)standby_->Call(wide);
}

// Runs `done` for the copies that the standby kernel has ended.
bool Copier::EndStanding() {
  bool any = false;
  while (!standing_.empty()) {
    const uint64_t first = last_standing_ - standing_.size() + 1;
    const bool ended = standby_->ended() >= first;
    if (!ended && standby_failed_.ok()) {
      if (++standing_asked_ % kLooksPerQuery != 0) return any;
      standby_failed_ = standby_->Look();
      if (standby_failed_.ok()) return any;
    }
    Copy copy = std::move(standing_.front());
    standing_.pop_front();
    --outstanding_;
    any = true;
    std::move(copy.done)(ended ? absl::OkStatus() : standby_failed_);
  }
  return any;
}

void Copier::Flush() {
  if (collected_.empty()) return;
  std::unique_ptr<Batch> batch = TakeBatch();
  batch->copies.swap(collected_);
  Submit(&lanes(Direction::kOnDevice)[0], std::move(batch));
}

void Copier::Submit(Lane* lane, std::unique_ptr<Batch> batch) {
  if (batch->failed.ok()) batch->failed = Enqueue(lane, batch.get());
  // Ended by Poll() in either case: `done` is not to run in here.
  ++lane->started;
  lane->running.push_back(std::move(batch));
}

absl::Status Copier::Enqueue(Lane* lane, Batch* batch) {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  const Copy& first = batch->copies[0];
  if (gather_ == nullptr || batch->copies.size() > 1 || first.bytes == 0 ||
      first.bytes > kKernelBytes || first.direction == Direction::kFromPeer) {
    return EnqueueAll(lane, batch);
  }
  for (const GpuEvent* event : first.after) {
    if (event == nullptr) continue;
    status = gpu_->driver().Check(
        "cuStreamWaitEvent", gpu_->calls().cuStreamWaitEvent(lane->stream.get(), event->get(), 0));
    if (!status.ok()) return status;
  }
  ++counters_.submissions;
  batch->mark = ++lane->last_mark;
  return gather_->LaunchCopy({first.to, first.from, first.bytes}, lane->flag, batch->mark,
                             lane->stream.get());
}

absl::Status Copier::EnqueueAll(Lane* lane, Batch* batch) {
  const CudaDriver& driver = gpu_->driver();
  const cuda::Stream stream = lane->stream.get();
  absl::Status status;
  if (!batch->event.valid()) {
    auto event = gpu_->MakeEvent();
    if (!event.ok()) return event.status();
    batch->event = *std::move(event);
  }
  // Where there is no memory for a table of them, the pieces go one by one.
  const bool gather =
      gather_ != nullptr && batch->copies.size() >= kGatherPieces &&
      batch->gathered.Reserve(gpu_, static_cast<uint32_t>(batch->copies.size())).ok();
  for (const Copy& copy : batch->copies) {
    for (const GpuEvent* event : copy.after) {
      if (event == nullptr || batch->copies.size() > 1) continue;  // All of several are there.
      status = driver.Check("cuStreamWaitEvent",
                            gpu_->calls().cuStreamWaitEvent(stream, event->get(), 0));
      if (!status.ok()) return status;
    }
    if (copy.bytes == 0) continue;
    if (gather && copy.bytes <= kGatherPieceBytes) {
      batch->gathered.Add({copy.to, copy.from, copy.bytes});
      continue;
    }
    ++counters_.submissions;
    status = driver.Check("cuMemcpyAsync",
                          gpu_->calls().cuMemcpyAsync(copy.to, copy.from, copy.bytes, stream));
    if (!status.ok()) return status;
  }
  if (batch->gathered.count() > 0) {
    ++counters_.submissions;
    status = gather_->Launch(batch->gathered, stream);
    if (!status.ok()) return status;
  }
  return batch->event.Record(stream);
}

// One copy for its caller, whatever it is made of.
void Copier::StartWhole(absl::FunctionRef<absl::Status(Lane* lane, Batch* batch)> enqueue,
                        Done done) {
  ++outstanding_;
  Lane* lane = &lanes(Direction::kOnDevice)[0];
  std::unique_ptr<Batch> batch = TakeBatch();
  Copy whole;
  whole.done = std::move(done);
  batch->copies.push_back(std::move(whole));
  batch->failed = gpu_->Use();
  if (batch->failed.ok() && !batch->event.valid()) {
    auto event = gpu_->MakeEvent();
    batch->failed = event.status();
    if (event.ok()) batch->event = *std::move(event);
  }
  if (batch->failed.ok()) batch->failed = enqueue(lane, batch.get());
  if (batch->failed.ok()) batch->failed = batch->event.Record(lane->stream.get());
  ++lane->started;
  lane->running.push_back(std::move(batch));
}

void Copier::StartMany(absl::Span<const GatherPiece> pieces, Done done) {
  counters_.copies += pieces.size();
  StartWhole([this, pieces](Lane* lane, Batch* batch) { return EnqueueMany(lane, batch, pieces); },
             std::move(done));
}

absl::Status Copier::EnqueueMany(Lane* lane, Batch* batch, absl::Span<const GatherPiece> pieces) {
  const bool gather = gather_ != nullptr &&
                      batch->gathered.Reserve(gpu_, static_cast<uint32_t>(pieces.size())).ok();
  for (const GatherPiece& piece : pieces) {
    counters_.bytes += piece.bytes;
    if (gather && piece.bytes <= kGatherPieceBytes) {
      batch->gathered.Add(piece);
    } else if (piece.bytes > 0) {
      ++counters_.submissions;
      const absl::Status status = gpu_->driver().Check(
          "cuMemcpyAsync",
          gpu_->calls().cuMemcpyAsync(piece.to, piece.from, piece.bytes, lane->stream.get()));
      if (!status.ok()) return status;
    }
  }
  if (batch->gathered.count() == 0) return absl::OkStatus();
  ++counters_.submissions;
  return gather_->Launch(batch->gathered, lane->stream.get());
}

void Copier::StartStrided(const StridedRuns& runs, Done done) {
  ++counters_.copies;
  counters_.bytes += runs.runs * runs.units * runs.to_unit;
  StartWhole(
      [this, &runs](Lane* lane, Batch*) {
        if (gather_ == nullptr) {
          return absl::UnimplementedError(absl::StrCat(
              "GPU ", gpu_->ordinal(),
              " is too old to copy strided memory: it has a compute capability below 7.5"));
        }
        ++counters_.submissions;
        return gather_->LaunchStrided(runs, lane->stream.get());
      },
      std::move(done));
}

std::unique_ptr<Copier::Batch> Copier::TakeBatch() {
  if (free_.empty()) return std::make_unique<Batch>();
  std::unique_ptr<Batch> batch = std::move(free_.back());
  free_.pop_back();
  return batch;
}

bool Copier::EndBatch(std::unique_ptr<Batch> batch, const absl::Status& status) {
  outstanding_ -= batch->copies.size();
  std::vector<Copy> ended;
  ended.swap(batch->copies);
  batch->gathered.Clear();
  batch->mark = 0;
  if (free_.size() < kBatchesKept && status.ok()) free_.push_back(std::move(batch));
  for (Copy& copy : ended) std::move(copy.done)(status);
  return true;
}

// An error: the context is lost, nothing ends any more, and nothing of it moves either.
absl::StatusOr<bool> Copier::Ended(Lane* lane, const Batch& batch) {
  if (!batch.failed.ok()) return gpu_->IsIdle(lane->stream.get());
  if (batch.mark == 0) return batch.event.Done();
  if (__atomic_load_n(lane->flag, __ATOMIC_ACQUIRE) >= batch.mark) return true;
  if (++lane->asked % kLooksPerQuery != 0) return false;
  absl::StatusOr<bool> idle = gpu_->IsIdle(lane->stream.get());
  if (!idle.ok()) return idle.status();
  return *idle && __atomic_load_n(lane->flag, __ATOMIC_ACQUIRE) >= batch.mark;
}

Copier::Sight Copier::Glance() const {
  if (outstanding_ == 0) return Sight::kNone;
  Sight sight = Sight::kNone;
  if (!standing_.empty()) {
    sight = Sight::kRunning;
    if (standby_->ended() > last_standing_ - standing_.size()) return Sight::kEnded;
  }
  for (const auto& lanes : lanes_) {
    for (const Lane& lane : lanes) {
      if (lane.running.empty() || lane.running.front()->mark == 0) continue;
      sight = Sight::kRunning;
      if (__atomic_load_n(lane.flag, __ATOMIC_ACQUIRE) >= lane.running.front()->mark) {
        return Sight::kEnded;
      }
    }
  }
  return sight;
}

void Copier::WhenThere(const GpuEvent* event, Done done) {
  ++outstanding_;
  watches_.push_back({event, std::move(done)});
}

bool Copier::Poll() {
  if (outstanding_ == 0) return false;
  bool any = false;
  for (size_t i = 0; i < watches_.size();) {
    const GpuEvent* const event = watches_[i].event;
    const absl::StatusOr<bool> there = event == nullptr ? true : event->Done();
    if (there.ok() && !*there) {
      ++i;
      continue;
    }
    Done done = std::move(watches_[i].done);
    watches_.erase(watches_.begin() + static_cast<ptrdiff_t>(i));
    --outstanding_;
    any = true;
    std::move(done)(there.status());
  }
  any |= EndStanding();
  for (auto& lanes : lanes_) {
    for (Lane& lane : lanes) {
      while (!lane.running.empty()) {
        const absl::StatusOr<bool> there = Ended(&lane, *lane.running.front());
        if (there.ok() && !*there) break;
        std::unique_ptr<Batch> batch = std::move(lane.running.front());
        lane.running.pop_front();
        const absl::Status status = batch->failed.ok() ? there.status() : batch->failed;
        any |= EndBatch(std::move(batch), status);
      }
    }
  }
  bool released = false;
  for (std::deque<Copy>& line : held_back_) {
    for (size_t i = 0; i < line.size();) {
      if (TryStart(&line[i])) {
        line.erase(line.begin() + static_cast<ptrdiff_t>(i));
        released = true;
      } else {
        ++i;
      }
    }
  }
  // The owner flushes at the end of the turns in which it starts copies, and those are over.
  if (released) Flush();
  return any || released;
}

absl::StatusOr<bool> Copier::JoinStream(Direction direction, cuda::Stream stream) {
  if (!held_back_[static_cast<size_t>(direction)].empty()) return false;
  if (direction == Direction::kOnDevice) Flush();
  absl::Status status = gpu_->Use();
  for (Lane& lane : lanes(direction)) {
    for (const std::unique_ptr<Batch>& batch : lane.running) {
      if (!batch->failed.ok()) return batch->failed;
    }
    if (lane.running.empty() || !status.ok()) continue;
    const GpuEvent* event = &lane.running.back()->event;
    if (lane.running.back()->mark != 0) {
      if (!lane.join.valid()) {
        auto made = gpu_->MakeEvent();
        if (!made.ok()) return made.status();
        lane.join = *std::move(made);
      }
      status = lane.join.Record(lane.stream.get());
      event = &lane.join;
      if (!status.ok()) continue;
    }
    status = gpu_->driver().Check("cuStreamWaitEvent",
                                  gpu_->calls().cuStreamWaitEvent(stream, event->get(), 0));
  }
  if (!status.ok()) return status;
  return true;
}

void Copier::OnWake(void* wake_up) {
  auto* const told = static_cast<WakeUp*>(wake_up);
  told->came.store(true, std::memory_order_relaxed);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(told->event_fd, &one, sizeof(one));
}

void Copier::Arm() {
  Flush();  // Nothing tells of the end of a copy that was not submitted.
  // What was written by now is not lost: the owner polls once more before it sleeps.
  uint64_t ignored;
  [[maybe_unused]] const ssize_t got = read(event_fd_, &ignored, sizeof(ignored));
  if (outstanding_ == 0 || !gpu_->Use().ok()) return;
  const auto launch = [this](cuda::Stream stream, WakeUp* wake_up) {
    wake_up->event_fd = event_fd_;
    return gpu_->calls().cuLaunchHostFunc(stream, &OnWake, wake_up) == cuda::kSuccess;
  };
  // A watch, or a copy that is held back, waits for work of others. None of our streams can tell us
  // when that ends, so we look.
  bool must_look = !watches_.empty();
  for (const std::deque<Copy>& line : held_back_) must_look |= !line.empty();
  if (!standing_.empty()) must_look |= !launch(standby_->stream(), &standing_wake_up_);
  for (auto& lanes : lanes_) {
    for (Lane& lane : lanes) {
      if (lane.wake_up.came.exchange(false, std::memory_order_relaxed)) lane.armed = 0;
      // One stands there already. A stream may wait for long, and the driver's queue has an end.
      if (lane.running.empty() || lane.armed == lane.started) continue;
      if (launch(lane.stream.get(), &lane.wake_up)) {
        lane.armed = lane.started;
      } else {
        must_look = true;
      }
    }
  }
  if (!must_look) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
}

}  // namespace tryst
