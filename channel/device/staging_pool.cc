#include "channel/device/staging_pool.h"

#include <utility>

#include "base/log.h"

namespace tryst {

class StagingPool::Slot final : public Storage {
 public:
  Slot(StagingPool* pool, void* data, uint64_t bytes, const MemorySpace& space)
      : Storage(data, bytes, space), pool_(pool) {
    KeepNotes();  // The pool's memory outlasts its slots.
  }
  ~Slot() override = default;

  void Lend(std::shared_ptr<StagingPool> keep) {
    keep_ = std::move(keep);
    if (lent_before_) Reuse();
    lent_before_ = true;
  }

 private:
  void OnUnused() override {
    const std::shared_ptr<StagingPool> keep = std::move(keep_);
    pool_->Give(this);
  }

  StagingPool* const pool_;
  std::shared_ptr<StagingPool> keep_;  // Set while it is lent.
  bool lent_before_ = false;           // It is made with one reference, which its first user gets.
};

StagingPool::StagingPool(StorageRef shared, PinnedMemory memory, const MemorySpace& space,
                         uint64_t slot_bytes, uint32_t slots)
    : shared_(std::move(shared)),
      memory_(std::move(memory)),
      slot_bytes_(slot_bytes),
      slots_(slots) {
  for (uint32_t i = 0; i < slots; ++i) {
    MemorySpace its_space = space;
    if (shared_) its_space.segment_offset += i * slot_bytes;
    free_.push_back(
        new Slot(this, static_cast<char*>(memory_.data()) + i * slot_bytes, slot_bytes, its_space));
  }
}

StagingPool::~StagingPool() {
  MutexLock lock(&mu_);
  TRYST_CHECK(free_.size() == slots_);
  for (Slot* slot : free_) delete slot;
}

absl::StatusOr<std::shared_ptr<StagingPool>> StagingPool::Create(const Gpu* gpu,
                                                                 uint64_t slot_bytes,
                                                                 uint32_t slots) {
  auto memory = PinnedMemory::Allocate(gpu, slot_bytes * slots);
  if (!memory.ok()) return memory.status();
  MemorySpace pinned;
  pinned.kind = MemorySpace::Kind::kPinned;
  return std::shared_ptr<StagingPool>(
      new StagingPool(StorageRef(), *std::move(memory), pinned, slot_bytes, slots));
}

absl::StatusOr<std::shared_ptr<StagingPool>> StagingPool::CreateShared(const Gpu* gpu,
                                                                       uint64_t slot_bytes,
                                                                       uint32_t slots,
                                                                       Allocator* arena) {
  auto shared = arena->Allocate(slot_bytes * slots);
  if (!shared.ok()) return shared.status();
  auto memory = PinnedMemory::Register(gpu, (*shared)->data(), (*shared)->bytes());
  if (!memory.ok()) return memory.status();
  const MemorySpace space = (*shared)->space();
  return std::shared_ptr<StagingPool>(
      new StagingPool(*std::move(shared), *std::move(memory), space, slot_bytes, slots));
}

StorageRef StagingPool::Take() {
  Slot* slot = nullptr;
  {
    MutexLock lock(&mu_);
    if (free_.empty()) {
      refused_ = true;
      return StorageRef();
    }
    slot = free_.back();
    free_.pop_back();
  }
  slot->Lend(shared_from_this());
  return StorageRef::Own(slot);
}

void StagingPool::Give(Slot* slot) {
  {
    MutexLock lock(&mu_);
    free_.push_back(slot);
    if (!std::exchange(refused_, false)) return;
  }
  MutexLock lock(&room_mu_);
  if (on_room_) on_room_();
}

void StagingPool::SetRoomCallback(absl::AnyInvocable<void()> on_room) {
  MutexLock lock(&room_mu_);
  on_room_ = std::move(on_room);
}

size_t StagingPool::lent() const {
  MutexLock lock(&mu_);
  return slots_ - free_.size();
}

}  // namespace tryst
