#include "channel/device/device_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "channel/device/device_selections.h"

namespace tryst {
namespace {

constexpr size_t kEventsKept = 1024;
constexpr std::chrono::seconds kReleasePatience{5};  // With a poller that does not answer.

}  // namespace

// A block of the device pool while it is a tensor's storage.
class DeviceEngine::BlockStorage final : public Storage {
 public:
  BlockStorage(DevicePool* pool, DevicePool::Block* block, cuda::Stream stream)
      : Storage(block->data(), block->bytes(),
                MemorySpace{MemorySpace::Kind::kDevice, pool->gpu()->ordinal()}),
        pool_(pool),
        block_(block),
        stream_(stream) {}
  const GpuEvent* last_use() const { return block_->last_use(); }
  void SetUsedUntil(std::shared_ptr<const GpuEvent> event) { used_until_ = std::move(event); }

 private:
  ~BlockStorage() override {
    if (used_until_ != nullptr) FollowUse();
    pool_->Give(block_, stream_);
  }
  // Has the stream, and with it whoever gets the memory next, wait for the last use.
  void FollowUse() {
    const Gpu* const gpu = pool_->gpu();
    for (;;) {
      const absl::StatusOr<bool> over = used_until_->Done();
      if (!over.ok() || *over) return;
      if (gpu->Use().ok() &&
          gpu->calls().cuStreamWaitEvent(stream_, used_until_->get(), 0) == cuda::kSuccess) {
        return;
      }
      std::this_thread::yield();  // The driver has no memory for now.
    }
  }

  DevicePool* const pool_;
  DevicePool::Block* const block_;
  const cuda::Stream stream_;
  std::shared_ptr<const GpuEvent> used_until_;
};

DeviceEngine::DeviceEngine(Poller* poller, const Gpu* gpu, const DeviceEngineOptions& options)
    : poller_(poller),
      gpu_(gpu),
      options_(options),
      pool_(gpu, options.pool_bytes),
      exporter_(gpu),
      mappings_(gpu, options.mappings_kept) {
  room_task_.engine = this;
}

absl::StatusOr<std::unique_ptr<DeviceEngine>> DeviceEngine::Open(
    Poller* poller, const Gpu* gpu, const DeviceEngineOptions& options) {
  if (options.slot_bytes == 0 || options.serve_slots == 0 || options.fetch_slots == 0) {
    return absl::InvalidArgumentError(
        "a GPU needs memory for copies through the host: slot_bytes, serve_slots and fetch_slots "
        "must be above 0");
  }
  if (options.standby_us < 0)
    return absl::InvalidArgumentError("standby_us is negative, and must be 0 or more");
  std::unique_ptr<DeviceEngine> engine(new DeviceEngine(poller, gpu, options));
  auto copier = Copier::Create(gpu, static_cast<uint64_t>(options.standby_us) * 1000);
  if (!copier.ok()) return copier.status();
  engine->copier_ = *std::move(copier);
  auto stream = gpu->MakeStream();
  if (!stream.ok()) return stream.status();
  engine->selections_ = std::make_unique<DeviceSelections>(engine.get(), *std::move(stream));
  if (options.arena != nullptr) {
    // The arena's: it lasts as long as any mapping, which may be longer than we do.
    engine->segments_ = std::static_pointer_cast<PeerSegments>(options.arena->peer_watcher());
  }
  for (SlotLine* line : {&engine->serve_, &engine->fetch_}) {
    const uint32_t slots = line == &engine->serve_ ? options.serve_slots : options.fetch_slots;
    absl::StatusOr<std::shared_ptr<StagingPool>> pool =
        absl::UnimplementedError("this worker shares no memory");
    if (line == &engine->serve_) {
      if (options.arena != nullptr) {
        pool = StagingPool::CreateShared(gpu, options.slot_bytes, slots, options.arena.get());
      }
      engine->staging_ = pool.ok()
                             ? "staged in shared memory"
                             : absl::StrCat("staged in private memory: ", pool.status().message());
    }
    if (!pool.ok()) pool = StagingPool::Create(gpu, options.slot_bytes, slots);
    if (!pool.ok()) return pool.status();
    (*pool)->SetRoomCallback([at = engine.get()] {
      if (!at->room_task_.posted.exchange(true)) at->poller_->Post(&at->room_task_);
    });
    line->pool = *std::move(pool);
  }
  return engine;
}

DeviceEngine::~DeviceEngine() {
  TRYST_CHECK(!attached_);
  for (SlotLine* line : {&serve_, &fetch_}) {
    if (line->pool != nullptr) line->pool->SetRoomCallback(nullptr);
  }
}

void DeviceEngine::Attach() {
  poller_->AddSource(this);
  attached_ = true;
}

void DeviceEngine::Detach() {
  TRYST_CHECK(idle());
  if (std::exchange(attached_, false)) poller_->RemoveSource(this);
  poller_->ForgetFlush(this);
}

bool DeviceEngine::Poll() {
  gpu_->AllowCaptures();  // On whichever thread turns the poller.
  if (copier_->Poll()) {
    quiet_since_ns_ = 0;
    return true;
  }
  if (copier_->idle()) {
    longest_ns_ = 0;
    return false;
  }
  if (quiet_since_ns_ == 0) quiet_since_ns_ = poller_->now_ns();
  return poller_->now_ns() - quiet_since_ns_ < options_.spin_us * 1000 + longest_ns_;
}

PollerSource::Sight DeviceEngine::Glance() {
  switch (copier_->Glance()) {
    case Copier::Sight::kEnded:
      return Sight::kWork;
    case Copier::Sight::kRunning:
      return Sight::kNothing;
    case Copier::Sight::kNone:
      break;
  }
  return Sight::kBlind;
}

void DeviceEngine::Copy(Copier::Direction direction, void* to, const void* from, uint64_t bytes,
                        const GpuEvent* after, const GpuEvent* and_after, Copier::Done done) {
  copier_->Start(direction, AddressOf(to), AddressOf(from), bytes, {after, and_after},
                 std::move(done));
  quiet_since_ns_ = 0;
  // Being woken out of a host function takes longer than most copies: a large one is looked for
  // as long as a bus of 64 GB/s needs for it.
  longest_ns_ = std::max(longest_ns_, static_cast<int64_t>(bytes / 64));
  poller_->FlushThisTurn(this);
}

bool DeviceEngine::CopySmall(void* to, const void* from, uint64_t bytes, const GpuEvent* after,
                             const GpuEvent* and_after, Copier::Done done) {
  const bool stands = copier_->StartSmall(AddressOf(to), AddressOf(from), bytes, {after, and_after},
                                          std::move(done));
  const int64_t now_ns = poller_->now_ns();
  const int64_t soon_ns = options_.standby_us * 1000;
  stand_by_ = !stands && now_ns - small_at_ns_ < soon_ns;
  small_at_ns_ = now_ns;
  if (bytes > Standby::kMostBytes) wide_at_ns_ = now_ns;
  stand_wide_ = now_ns - wide_at_ns_ < soon_ns;
  quiet_since_ns_ = 0;
  if (!stands) poller_->FlushThisTurn(this);
  return stands;
}

void DeviceEngine::CopyMany(absl::Span<const GatherPiece> pieces, Copier::Done done) {
  copier_->StartMany(pieces, std::move(done));
  quiet_since_ns_ = 0;
}

void DeviceEngine::CopyStrided(const StridedRuns& runs, Copier::Done done) {
  copier_->StartStrided(runs, std::move(done));
  quiet_since_ns_ = 0;
}

bool DeviceEngine::idle() const {
  return selections_->idle() && copier_->idle() && serve_.line.empty() && fetch_.line.empty();
}

void DeviceEngine::Flush() {
  copier_->Flush();
  if (std::exchange(stand_by_, false)) copier_->StandBy(stand_wide_);
}

uint64_t DeviceEngine::WhenSlot(SlotLine* line, WithSlot fn) {
  if (line->line.empty()) {
    StorageRef slot = line->pool->Take();
    if (slot) {
      std::move(fn)(std::move(slot));
      return 0;
    }
  }
  line->line.emplace_back(++last_wait_, std::move(fn));
  // Serving slots come back from other processes, which else wake us when there are many.
  if (line == &serve_ && line->line.size() == 1 && options_.arena != nullptr) {
    options_.arena->SetAwaited(true);
  }
  return last_wait_;
}

void DeviceEngine::StopWaitingForSlot(uint64_t wait) {
  auto& line = fetch_.line;
  line.erase(std::find_if(line.begin(), line.end(),
                          [wait](const auto& one) { return one.first == wait; }));
}

void DeviceEngine::RoomTask::RunOnPoller() {
  posted.store(false);
  engine->OnRoom(&engine->serve_);
  engine->OnRoom(&engine->fetch_);
}

void DeviceEngine::OnRoom(SlotLine* line) {
  while (!line->line.empty()) {
    StorageRef slot = line->pool->Take();
    if (!slot) return;
    WithSlot fn = std::move(line->line.front().second);
    line->line.pop_front();
    if (line == &serve_ && line->line.empty() && options_.arena != nullptr) {
      options_.arena->SetAwaited(false);
    }
    std::move(fn)(std::move(slot));
  }
}

absl::StatusOr<Tensor> DeviceEngine::Allocate(DType dtype, const TensorShape& shape,
                                              cuda::Stream stream) {
  auto bytes = TensorBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  auto block = pool_.Take(std::max<uint64_t>(*bytes, 1));
  if (!block.ok()) return block.status();
  return Tensor::FromStorage(StorageRef::Own(new BlockStorage(&pool_, *block, stream)), 0, dtype,
                             shape);
}

std::string DeviceEngine::ExplainStaging() const {
  std::string out = staging_;
  for (const SlotLine* line : {&serve_, &fetch_}) {
    if (line->line.empty()) continue;
    absl::StrAppend(&out, "; ", line->line.size(), " copies wait for one of ", line->pool->slots(),
                    line == &serve_ ? " serving" : " fetching", " slots, of which ",
                    line->pool->lent(), " are in use");
  }
  if (segments_ != nullptr && !segments_->refusal().empty()) {
    absl::StrAppend(&out, "; peers' memory is copied once by the CPU: ", segments_->refusal());
  }
  return out;
}

size_t DeviceEngine::ReleaseMappings() {
  struct Answer {
    Mutex mu;
    CondVar changed;
    bool is_given_up ABSL_GUARDED_BY(mu) = false;  // The engine may be gone.
    bool is_begun ABSL_GUARDED_BY(mu) = false;
    bool is_given ABSL_GUARDED_BY(mu) = false;
    size_t released ABSL_GUARDED_BY(mu) = 0;
  };
  auto answer = std::make_shared<Answer>();
  poller_->PostFn([this, answer] {
    {
      MutexLock lock(&answer->mu);
      if (answer->is_given_up) return;
      answer->is_begun = true;
    }
    exporter_.Forget();
    const size_t released = mappings_.ForgetAll();
    MutexLock lock(&answer->mu);
    answer->released = released;
    answer->is_given = true;
    answer->changed.NotifyAll();
  });
  const std::chrono::steady_clock::time_point until(
      std::chrono::nanoseconds(SteadyClock().NowNs()) + kReleasePatience);
  MutexLock lock(&answer->mu);
  while (!answer->is_given && !answer->is_given_up) {
    if (answer->is_begun) {
      answer->changed.Wait(&answer->mu);
    } else {
      const bool late = answer->changed.WaitUntil(&answer->mu, until);
      answer->is_given_up = late && !answer->is_begun;
    }
  }
  return answer->released;
}

absl::StatusOr<std::shared_ptr<const GpuEvent>> DeviceEngine::Mark(cuda::Stream stream) {
  auto idle = gpu_->IsIdle(stream);
  if (!idle.ok()) return idle.status();
  if (*idle) return std::shared_ptr<const GpuEvent>();
  const absl::Status records = gpu_->CheckNotCapturing(stream);
  if (!records.ok()) return records;
  GpuEvent event;
  {
    MutexLock lock(&events_mu_);
    if (!free_events_.empty()) {
      event = std::move(free_events_.back());
      free_events_.pop_back();
    }
  }
  if (!event.valid()) {
    auto made = gpu_->MakeEvent();
    if (!made.ok()) return made.status();
    event = *std::move(made);
  }
  absl::Status recorded = event.Record(stream);
  if (!recorded.ok()) return recorded;
  return std::shared_ptr<const GpuEvent>(
      new GpuEvent(std::move(event)), [this](const GpuEvent* done) {
        std::unique_ptr<const GpuEvent> owned(done);
        MutexLock lock(&events_mu_);
        if (free_events_.size() >= kEventsKept) return;
        free_events_.push_back(std::move(*const_cast<GpuEvent*>(done)));
      });
}

// ---- Copies for callers ----

// A copy between a GPU and host memory that it may not reach, slot by slot.
struct DeviceEngine::StagedCopy {
  Tensor from;
  Tensor into;
  bool to_device = false;
  std::shared_ptr<const GpuEvent> after;
  absl::AnyInvocable<void(absl::Status) &&> done;
  uint64_t at = 0;
};

void DeviceEngine::StartCopy(const Tensor& from, const Tensor& into,
                             std::shared_ptr<const GpuEvent> after,
                             absl::AnyInvocable<void(absl::Status) &&> done) {
  auto copy = std::make_shared<StagedCopy>();
  copy->from = from;
  copy->into = into;
  copy->to_device = !into.space().host_readable();
  copy->after = std::move(after);
  copy->done = std::move(done);
  poller_->PostFn([this, copy] {
    if (copy->from.bytes() > copy->into.bytes()) {
      return std::move(copy->done)(absl::InvalidArgumentError(
          absl::StrCat(copy->from.bytes(), " bytes of a tensor do not fit into a destination of ",
                       copy->into.bytes(), " bytes")));
    }
    if (copy->from.space().host_readable() || copy->into.space().host_readable()) {
      return StepStagedCopy(copy);
    }
    const int there = copy->from.space().device_ordinal;
    const bool in_reach = there == gpu_->ordinal() || has_peer(there);
    Copy(in_reach ? Copier::Direction::kOnDevice : Copier::Direction::kFromPeer,
         copy->into.mutable_data(), copy->from.data(), copy->from.bytes(), copy->after.get(),
         LastUse(copy->into),
         [copy](absl::Status status) { std::move(copy->done)(std::move(status)); });
  });
}

void DeviceEngine::StepStagedCopy(const std::shared_ptr<StagedCopy>& copy) {
  const uint64_t bytes = std::min(options_.slot_bytes, copy->from.bytes() - copy->at);
  if (bytes == 0) return std::move(copy->done)(absl::OkStatus());
  auto& line = copy->to_device ? fetch_ : serve_;
  WhenSlot(&line, [this, copy, bytes](StorageRef slot) {
    char* const into = static_cast<char*>(copy->into.mutable_data()) + copy->at;
    const char* const from = static_cast<const char*>(copy->from.data()) + copy->at;
    if (copy->to_device) memcpy(slot->data(), from, bytes);
    void* const data = slot->data();
    Copy(copy->to_device ? Copier::Direction::kToDevice : Copier::Direction::kToHost,
         copy->to_device ? into : data, copy->to_device ? data : from, bytes, copy->after.get(),
         copy->to_device ? LastUse(copy->into) : nullptr,
         [this, copy, bytes, into, slot](absl::Status status) {
           if (!status.ok()) return std::move(copy->done)(std::move(status));
           if (!copy->to_device) memcpy(into, slot->data(), bytes);
           copy->at += bytes;
           StepStagedCopy(copy);
         });
  });
}

const GpuEvent* LastUse(const Tensor& tensor) {
  const auto* block = dynamic_cast<const DeviceEngine::BlockStorage*>(tensor.storage().get());
  return block != nullptr ? block->last_use() : nullptr;
}

void UsedUntil(const Tensor& tensor, std::shared_ptr<const GpuEvent> event) {
  auto* block = dynamic_cast<DeviceEngine::BlockStorage*>(tensor.storage().get());
  TRYST_CHECK(block != nullptr);
  block->SetUsedUntil(std::move(event));
}

// ---- GpuContext ----

absl::StatusOr<std::shared_ptr<GpuContext>> GpuContext::Make(DeviceEngine* engine,
                                                             cuda::Stream stream, Options options) {
  absl::StatusOr<std::shared_ptr<const GpuEvent>> moment = std::shared_ptr<const GpuEvent>();
  if (!options.is_there) moment = engine->Mark(stream);
  if (!moment.ok()) return moment.status();
  return std::shared_ptr<GpuContext>(new GpuContext(engine, stream, options, *std::move(moment)));
}

absl::StatusOr<Tensor> GpuContext::Allocate(DType dtype, const TensorShape& shape,
                                            const AllocatorAttributes& attributes) {
  if (attributes.on_host) return Tensor::Allocate(dtype, shape);
  return engine_->Allocate(dtype, shape, stream_);
}

// The stream itself may be gone by now: what was sent may wait for long.
void GpuContext::StartCopy(const Tensor& from, const Tensor& into,
                           absl::AnyInvocable<void(absl::Status) &&> done) {
  engine_->StartCopy(from, into, moment_, std::move(done));
}

void GpuContext::WhenSent(const DeviceContext* receiver,
                          absl::AnyInvocable<void(absl::Status) &&> fn) {
  if (moment_ == nullptr) return std::move(fn)(absl::OkStatus());
  const auto* const theirs = dynamic_cast<const GpuContext*>(receiver);
  if (theirs != nullptr && theirs->complete_on_stream()) {
    const Gpu* const gpu = engine_->gpu();
    absl::Status status = gpu->Use();
    if (status.ok()) {
      status = gpu->driver().Check(
          "cuStreamWaitEvent", gpu->calls().cuStreamWaitEvent(theirs->stream(), moment_->get(), 0));
    }
    return std::move(fn)(std::move(status));
  }
  engine_->poller()->PostFn([engine = engine_, moment = moment_, fn = std::move(fn)]() mutable {
    const GpuEvent* const event = moment.get();
    engine->copier()->WhenThere(
        event, [moment = std::move(moment), fn = std::move(fn)](absl::Status there) mutable {
          std::move(fn)(std::move(there));
        });
  });
}

absl::StatusOr<SelectionCopier::Gathered> GpuContext::Gather(const Tensor& tensor,
                                                             const Selection& selection,
                                                             uint64_t bytes) {
  Gathered gathered;
  auto row = engine_->selections()->Gather(tensor, selection, bytes, stream_);
  if (!row.ok()) return row.status();
  gathered.tensor = *std::move(row);
  auto sent = Make(engine_, stream_);
  if (!sent.ok()) {
    (void)engine_->gpu()->WaitFor(stream_);  // The row goes, and is written until then.
    return sent.status();
  }
  UsedUntil(gathered.tensor, (*sent)->moment_);
  gathered.context = *std::move(sent);
  return gathered;
}

void GpuContext::StartScatter(const Tensor& dense, const Tensor& into, const Selection& selection,
                              absl::AnyInvocable<void(absl::Status) &&> done) {
  // Where a receive ends on the stream, the stream knows when `dense` is there.
  absl::StatusOr<std::shared_ptr<const GpuEvent>> after = moment_;
  if (complete_on_stream()) after = engine_->Mark(stream_);
  if (!after.ok()) return std::move(done)(after.status());
  engine_->selections()->StartScatter(dense, into, selection, stream_, *std::move(after),
                                      std::move(done));
}

}  // namespace tryst
