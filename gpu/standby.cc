#include "gpu/standby.h"

#include <new>
#include <utility>

#include "base/log.h"

namespace tryst {

absl::StatusOr<std::unique_ptr<Standby>> Standby::Create(const Gpu* gpu, const GatherKernel* kernel,
                                                         uint64_t linger_ns) {
  std::unique_ptr<Standby> standby(new Standby(gpu, kernel, linger_ns));
  auto memory = PinnedMemory::Allocate(gpu, sizeof(StandbyWords));
  if (!memory.ok()) return memory.status();
  standby->memory_ = *std::move(memory);
  new (standby->memory_.data()) StandbyWords();
  auto blocks = DeviceMemory::Allocate(gpu, sizeof(StandbyBlocks));
  if (!blocks.ok()) return blocks.status();
  standby->blocks_ = *std::move(blocks);
  auto stream = gpu->MakeStream();
  if (!stream.ok()) return stream.status();
  standby->stream_ = *std::move(stream);
  const absl::Status cleared = gpu->driver().Check(
      "cuMemsetD8Async",
      gpu->calls().cuMemsetD8Async(standby->blocks_.address(), 0, sizeof(StandbyBlocks),
                                   standby->stream_.get()));
  if (!cleared.ok()) return cleared;
  return standby;
}

Standby::~Standby() {
  if (stream_.get() != nullptr) (void)gpu_->WaitFor(stream_.get());
}

bool Standby::Takes(const GatherPiece& piece) const {
  return has_come() && !has_left() && piece.bytes <= (wide_ ? kMostWideBytes : kMostBytes) &&
         last_ - ended() < kStandbySlots && (piece.to | piece.from) >> kStandbyTagShift == 0;
}

uint64_t Standby::Copy(const GatherPiece& piece) {
  ++last_;
  const uint64_t tag = last_ << kStandbyTagShift;
  unsigned long long* const slot = words()->slots[last_ % kStandbySlots];
  __atomic_store_n(&slot[0], piece.to | tag, __ATOMIC_RELEASE);
  __atomic_store_n(&slot[1], piece.from | tag, __ATOMIC_RELEASE);
  __atomic_store_n(&slot[2], piece.bytes | tag, __ATOMIC_RELEASE);
  return last_;
}

absl::Status Standby::Call(bool wide) {
  if (!has_left()) return absl::OkStatus();
  wide_ = wide;
  return Launch();
}

absl::Status Standby::Launch() {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  // On its stream the one that left may still be ending; this one comes after it.
  status = kernel_->LaunchStandby(
      {words(), blocks_.address(), ended() + 1, launches_ + 1, linger_ns_, kLifeNs},
      wide_ ? kWideBlocks : 1, stream_.get());
  if (status.ok()) ++launches_;
  return status;
}

absl::Status Standby::Look() {
  const auto idle = gpu_->IsIdle(stream_.get());
  if (!idle.ok()) return idle.status();
  // In this order: a kernel says that it has left after what it has copied.
  if (!has_left() || ended() == last_) return absl::OkStatus();
  return Launch();
}

}  // namespace tryst
