#include "channel/device/gpu_nic.h"

#include <deque>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

// A region that peers may write. While one exists, completions need a flush.
class GpuNic::CountedRegion final : public ForwardingRegion {
 public:
  CountedRegion(std::unique_ptr<Region> region, std::shared_ptr<std::atomic<int>> count)
      : ForwardingRegion(std::move(region)), count_(std::move(count)) {
    count_->fetch_add(1);
  }
  ~CountedRegion() override {
    Deregister();
    count_->fetch_sub(1);
  }

 private:
  const std::shared_ptr<std::atomic<int>> count_;
};

// Holds completions back until the bytes that they report have been flushed. Belongs to one thread,
// as its queue pairs do.
class GpuNic::Queue final : public CompletionQueue {
 public:
  static absl::StatusOr<std::unique_ptr<CompletionQueue>> Create(GpuNic* nic, uint32_t depth);

  absl::StatusOr<size_t> Poll(absl::Span<Completion> out) override;
  absl::Status Arm() override { return inner_->Arm(); }
  int event_fd() const override { return inner_->event_fd(); }
  CompletionQueue* inner() const { return inner_.get(); }

 private:
  struct Held {
    Completion completion;
    uint64_t after = 0;  // The flush that must have ended.
  };
  static constexpr size_t kBatch = 32;

  explicit Queue(GpuNic* nic) : nic_(nic) {}
  bool Quiet() const { return held_.empty() && posted_ == flushed_; }
  bool AnyWritable() const;
  absl::Status TakeIn();
  absl::Status TakeIn(const Completion& completion);
  absl::Status OnFlushed(const Completion& completion);
  absl::Status StartFlush();

  GpuNic* const nic_;
  std::unique_ptr<CompletionQueue> inner_;
  uint64_t sink_ = 0;  // Where a flush reads to; the value is not used.
  std::unique_ptr<Region> sink_region_;
  LoopBack loop_;
  std::deque<Held> held_;
  uint64_t posted_ = 0;  // How many flushes were posted.
  uint64_t flushed_ = 0;
  bool wanted_ = false;  // Another flush is needed after those that were posted.
  int64_t posted_at_ns_ = 0;
};

absl::StatusOr<std::unique_ptr<CompletionQueue>> GpuNic::Queue::Create(GpuNic* nic,
                                                                       uint32_t depth) {
  std::unique_ptr<Queue> queue(new Queue(nic));
  auto inner = nic->nic()->CreateCompletionQueue(depth + LoopBack::kCompletions);
  if (!inner.ok()) return inner.status();
  queue->inner_ = *std::move(inner);
  auto sink = nic->nic()->RegisterRegion(&queue->sink_, sizeof(queue->sink_), kLocalWrite);
  if (!sink.ok()) return sink.status();
  queue->sink_region_ = *std::move(sink);
  auto loop = LoopBack::Open(nic->nic(), queue->inner_.get());
  if (!loop.ok()) return loop.status();
  queue->loop_ = *std::move(loop);
  return std::unique_ptr<CompletionQueue>(std::move(queue));
}

bool GpuNic::Queue::AnyWritable() const {
  for (const auto& side : nic_->sides_) {
    if (side->flushes() && side->writable->load(std::memory_order_acquire) > 0) return true;
  }
  return false;
}

absl::StatusOr<size_t> GpuNic::Queue::Poll(absl::Span<Completion> out) {
  if (Quiet() && !AnyWritable()) return inner_->Poll(out);
  absl::Status status = TakeIn();
  if (status.ok() && wanted_ && posted_ == flushed_) status = StartFlush();
  if (!status.ok()) return status;
  size_t count = 0;
  while (count < out.size() && !held_.empty() && held_.front().after <= flushed_) {
    out[count++] = held_.front().completion;
    held_.pop_front();
  }
  return count;
}

absl::Status GpuNic::Queue::TakeIn() {
  Completion batch[kBatch];
  absl::StatusOr<size_t> count = kBatch;
  // All that there is: what is left would be seen only when more comes.
  while (*count == kBatch) {
    count = inner_->Poll(absl::MakeSpan(batch));
    if (!count.ok()) return count.status();
    for (size_t i = 0; i < *count; ++i) {
      const absl::Status taken = TakeIn(batch[i]);
      if (!taken.ok()) return taken;
    }
  }
  return absl::OkStatus();
}

absl::Status GpuNic::Queue::TakeIn(const Completion& completion) {
  if (completion.queue_pair == loop_.near->number() ||
      completion.queue_pair == loop_.far->number()) {
    return OnFlushed(completion);
  }
  Held held{completion, 0};
  if (completion.status == CompletionStatus::kOk &&
      completion.op == CompletionOp::kReceiveWriteImmediate) {
    // The flush under way was posted before this completion was seen.
    held.after = posted_ + 1;
    wanted_ = true;
  }
  held_.push_back(held);
  return absl::OkStatus();
}

absl::Status GpuNic::Queue::StartFlush() {
  std::vector<SendWork> works;
  const Entry sink{sink_region_->address(), sizeof(sink_), sink_region_->local_key()};
  for (const auto& side : nic_->sides_) {
    if (!side->flushes()) continue;
    SendWork work;
    work.op = SendOp::kRead;
    work.signaled = false;
    work.entries = absl::MakeConstSpan(&sink, 1);
    work.remote_address = side->region->address();
    work.remote_key = side->region->remote_key();
    works.push_back(work);
  }
  works.back().signaled = true;  // They end in order, so the last one's end is the end of all.
  posted_at_ns_ = nic_->clock_.NowNs();
  wanted_ = false;
  ++posted_;
  return loop_.near->PostSend(works);
}

absl::Status GpuNic::Queue::OnFlushed(const Completion& completion) {
  const bool ok = completion.status == CompletionStatus::kOk;
  nic_->CountFlush(nic_->clock_.NowNs() - posted_at_ns_, ok);
  if (!ok) {
    return absl::UnavailableError(
        absl::StrCat(nic_->name(), " could not flush its writes to GPU memory (",
                     CompletionStatusName(completion.status),
                     "): tensors that it has written since the last flush cannot be trusted"));
  }
  flushed_ = posted_;
  return absl::OkStatus();
}

// ---- GpuNic ----

std::unique_ptr<GpuNic> GpuNic::Wrap(std::shared_ptr<Nic> nic, const std::vector<const Gpu*>& gpus,
                                     const DirectOptions& options) {
  std::unique_ptr<GpuNic> made(new GpuNic(std::move(nic)));
  size_t flushes = 0;  // A queue posts one READ for each at a time.
  for (const Gpu* gpu : gpus) {
    auto side = std::make_unique<Side>();
    side->gpu = gpu;
    side->reach = ProveReach(made->nic(), *gpu, options);
    if (side->reach.way != DirectWay::kStaging && side->reach.flush.flush) {
      const absl::Status prepared =
          flushes < LoopBack::kDepth
              ? made->PrepareFlush(side.get())
              : absl::ResourceExhaustedError(absl::StrCat("this NIC already flushes for ", flushes,
                                                          " other GPUs, and can for no more"));
      if (!prepared.ok()) {
        (side->reach.way == DirectWay::kDmaBuf ? side->reach.dma_buf : side->reach.peer_memory) =
            absl::StrCat("no flush: ", prepared.message());
        if (side->reach.peer_memory.empty()) side->reach.peer_memory = "not tried";
        side->reach.way = DirectWay::kStaging;
      }
    }
    flushes += side->flushes();
    made->any_flushes_ |= side->flushes();
    TRYST_LOG(Info) << side->reach.ToText();
    made->sides_.push_back(std::move(side));
  }
  return made;
}

GpuNic::~GpuNic() = default;

absl::Status GpuNic::PrepareFlush(Side* side) {
  constexpr uint64_t kBytes = 4096;
  auto memory = DeviceMemory::Allocate(side->gpu, kBytes);
  if (!memory.ok()) return memory.status();
  side->flushed = *std::move(memory);
  auto region = RegisterGpuMemory(nic(), *side->gpu, side->reach.way, side->flushed.address(),
                                  kBytes, kRemoteRead);
  if (!region.ok()) return region.status();
  side->region = *std::move(region);
  return absl::OkStatus();
}

const GpuNic::Side* GpuNic::SideOf(int ordinal) const {
  for (const auto& side : sides_) {
    if (side->reach.gpu == ordinal) return side.get();
  }
  return nullptr;
}

absl::Status GpuNic::ReachesDevice(int ordinal) const {
  const Side* side = SideOf(ordinal);
  if (side == nullptr) return Nic::ReachesDevice(ordinal);
  if (side->reach.way != DirectWay::kStaging) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the NIC ", name(), " does not reach GPU ", ordinal,
                                               ": ", side->reach.Refusal()));
}

absl::StatusOr<std::unique_ptr<Region>> GpuNic::RegisterDevice(int ordinal, void* address,
                                                               uint64_t bytes, uint32_t access) {
  absl::Status status = ReachesDevice(ordinal);
  if (!status.ok()) return status;
  const Side* side = SideOf(ordinal);
  auto region = RegisterGpuMemory(nic(), *side->gpu, side->reach.way,
                                  reinterpret_cast<cuda::Address>(address), bytes, access);
  if (!region.ok() || (access & kRemoteWrite) == 0 || !side->flushes()) return region;
  return std::unique_ptr<Region>(new CountedRegion(*std::move(region), side->writable));
}

absl::StatusOr<std::unique_ptr<CompletionQueue>> GpuNic::CreateCompletionQueue(uint32_t depth) {
  if (!any_flushes_) return nic()->CreateCompletionQueue(depth);
  return Queue::Create(this, depth);
}

absl::StatusOr<std::unique_ptr<QueuePair>> GpuNic::CreateQueuePair(
    const QueuePairOptions& options) {
  QueuePairOptions inner = options;
  if (any_flushes_ && options.completions != nullptr) {
    inner.completions = static_cast<Queue*>(options.completions)->inner();
  }
  return nic()->CreateQueuePair(inner);
}

void GpuNic::CountFlush(int64_t ns, bool ok) {
  (ok ? flushes_ : flushes_failed_).fetch_add(1, std::memory_order_relaxed);
  const uint64_t took = static_cast<uint64_t>(ns);
  flush_ns_.fetch_add(took, std::memory_order_relaxed);
  uint64_t most = flush_ns_most_.load(std::memory_order_relaxed);
  while (took > most && !flush_ns_most_.compare_exchange_weak(most, took)) {
  }
}

FlushCounters GpuNic::flushes() const {
  return {flushes_.load(), flushes_failed_.load(), flush_ns_.load(), flush_ns_most_.load()};
}

std::vector<DirectReach> GpuNic::reaches() const {
  std::vector<DirectReach> all;
  for (const auto& side : sides_) all.push_back(side->reach);
  return all;
}

std::string GpuNic::Explain() const {
  std::string out;
  for (const auto& side : sides_) absl::StrAppend(&out, side->reach.ToText(), "\n");
  const FlushCounters counters = flushes();
  if (counters.flushes > 0) {
    absl::StrAppend(&out, "flushes by ", name(), ": ", counters.flushes, ", ",
                    counters.ns / counters.flushes, " ns on average, ", counters.ns_most,
                    " ns at most\n");
  }
  return out;
}

}  // namespace tryst
