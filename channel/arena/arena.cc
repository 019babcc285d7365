#include "channel/arena/arena.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

// The kernel's setting for transparent huge pages in shared memory that asks for them, as ours
// does.
std::string TransparentHugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "unknown";
  const std::string policy = text.substr(begin + 1, end - begin - 1);
  const bool none = policy == "never" || policy == "deny";
  return absl::StrCat(none ? "none" : "yes", " (shmem_enabled is ", policy, ")");
}

}  // namespace

// One memfd. `whole`: it holds a single tensor, which is larger than a usual segment.
struct Arena::Segment {
  Segment(std::shared_ptr<SharedMemory> memory, uint64_t id, bool whole)
      : memory(std::move(memory)), id(id), whole(whole) {
    if (!whole) buddy = std::make_unique<Buddy>(this->memory->bytes());
  }
  bool empty() const { return blocks == 0; }

  const std::shared_ptr<SharedMemory> memory;
  const uint64_t id;
  const bool whole;
  std::unique_ptr<Buddy> buddy;
  uint64_t blocks = 0;  // Blocks that were cut from it and not merged back.
};

// A block of memory that can be lent. Its storage object is reused with it, so lending it again
// costs no allocation.
class Arena::Block final : public Storage {
 public:
  Block(Segment* segment, uint64_t offset, uint64_t bytes)
      : Storage(segment->memory->data() + offset, bytes, Space(*segment, offset)),
        segment(segment),
        offset(offset) {
    KeepNotes();  // The segment lives as long as it has blocks.
  }
  ~Block() override = default;
  void Lend(std::shared_ptr<Arena> arena) {
    keep_ = std::move(arena);
    if (used_before_) Reuse();
    used_before_ = true;
  }

  Segment* const segment;
  const uint64_t offset;

 private:
  static MemorySpace Space(const Segment& segment, uint64_t offset) {
    MemorySpace space;
    space.kind = MemorySpace::Kind::kShared;
    space.segment_id = segment.id;
    space.segment_offset = offset;
    return space;
  }
  void OnUnused() override {
    const std::shared_ptr<Arena> arena = std::move(keep_);
    arena->GiveBack(this);
  }

  std::shared_ptr<Arena> keep_;  // Set while the block is lent.
  bool used_before_ = false;
};

Arena::Arena(const ArenaOptions& options) : options_(options), next_id_(options.seed) {}

// Blocks that are lent own the arena. Who allocates has a pointer of its own, since what is kept
// for peers owns such blocks, and would else stay for ever.
std::shared_ptr<Arena> Arena::Make(const ArenaOptions& options) {
  const std::shared_ptr<Arena> owned(new Arena(options));
  return std::shared_ptr<Arena>(owned.get(), [owned](Arena* arena) { arena->StopKeeping(); });
}

Arena::~Arena() {
  // Every lent block holds the arena, so none is lent now.
  MutexLock lock(&mu_);
  for (auto& of_class : ready_) {
    for (Block* block : of_class) delete block;
  }
}

size_t Arena::ClassOf(uint64_t rounded) {
  // The class is the position of the highest bit and the three bits after it: as fine as Buddy
  // rounds.
  uint64_t units = rounded / Buddy::kGranule;
  size_t shift = 0;
  while (units >= 16) {
    units >>= 1;
    ++shift;
  }
  return shift * 8 + static_cast<size_t>(units);
}

absl::StatusOr<StorageRef> Arena::Allocate(uint64_t bytes) {
  Block* block = nullptr;
  {
    MutexLock lock(&mu_);
    block = TakeBlock(bytes);
  }
  if (block == nullptr) {
    // Readers of ended channels may have released blocks meanwhile.
    DropKept();
    MutexLock lock(&mu_);
    block = TakeBlock(bytes);
    if (block == nullptr) {
      ++counters_.refusals;
      return absl::ResourceExhaustedError(absl::StrCat(
          "no shared memory is left for ", bytes, " bytes: ", counters_.used_bytes,
          " are in use, in segments of ", counters_.segment_bytes, ", and shm_bytes is ",
          options_.cap_bytes, ": raise shm_bytes, or release tensors"));
    }
  }
  block->Lend(shared_from_this());
  return StorageRef::Own(block);
}

absl::StatusOr<Tensor> Arena::AllocateTensor(DType dtype, const TensorShape& shape) {
  auto bytes = TensorBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  auto storage = Allocate(*bytes);
  if (!storage.ok()) return storage.status();
  return Tensor::FromStorage(*std::move(storage), 0, dtype, shape);
}

void* Arena::AllocateRaw(uint64_t bytes) {
  auto storage = Allocate(bytes);
  if (!storage.ok()) return nullptr;
  Block* block = static_cast<Block*>(storage->get());
  block->Ref();  // Until Free().
  MutexLock lock(&mu_);
  raw_[block->data()] = block;
  return block->data();
}

void Arena::Free(void* memory) {
  if (memory == nullptr) return;
  Block* block = nullptr;
  {
    MutexLock lock(&mu_);
    auto found = raw_.find(memory);
    TRYST_CHECK(found != raw_.end()) << "freed what AllocateRaw() did not give";
    block = found->second;
    raw_.erase(found);
  }
  block->Unref();
}

MemorySpace Arena::SpaceOf(const void* memory) const {
  MemorySpace space;
  MutexLock lock(&mu_);
  for (const auto& segment : segments_) {
    const uint8_t* begin = segment->memory->data();
    const uint8_t* at = static_cast<const uint8_t*>(memory);
    if (at < begin || at >= begin + segment->memory->bytes()) continue;
    space.kind = MemorySpace::Kind::kShared;
    space.segment_id = segment->id;
    space.segment_offset = static_cast<uint64_t>(at - begin);
  }
  return space;
}

std::shared_ptr<SharedMemory> Arena::FindSegment(uint64_t segment_id) const {
  MutexLock lock(&mu_);
  for (const auto& segment : segments_) {
    if (segment->id == segment_id) return segment->memory;
  }
  return nullptr;
}

Arena::Block* Arena::TakeBlock(uint64_t bytes) {
  const uint64_t rounded = Buddy::Rounded(bytes);
  if (rounded > options_.cap_bytes) return nullptr;
  const size_t size_class = ClassOf(rounded);
  if (size_class >= ready_.size()) {
    ready_.resize(size_class + 1);
    class_used_.resize(size_class + 1);
  }
  class_used_[size_class] = true;
  Block* block = nullptr;
  if (!ready_[size_class].empty()) {
    block = ready_[size_class].back();
    ready_[size_class].pop_back();
    counters_.kept_bytes -= block->bytes();
  } else {
    block = CutBlock(rounded);
  }
  if (block == nullptr) return nullptr;
  ++counters_.allocations;
  counters_.used_bytes += block->bytes();
  return block;
}

Arena::Block* Arena::CutBlock(uint64_t bytes) {
  const bool whole = bytes > options_.segment_bytes / 2;
  for (int round = 0; round < 2; ++round) {
    for (auto& segment : segments_) {
      if (segment->whole) continue;
      const uint64_t offset = whole ? Buddy::kNone : segment->buddy->Take(bytes);
      if (offset == Buddy::kNone) continue;
      ++segment->blocks;
      return new Block(segment.get(), offset, bytes);
    }
    uint64_t wanted = bytes;
    if (whole) {
      // Rounds up to whole huge pages, if that costs little.
      const uint64_t rounded = (bytes + SharedMemory::kHugePageBytes - 1) /
                               SharedMemory::kHugePageBytes * SharedMemory::kHugePageBytes;
      if (rounded - bytes <= bytes / 8 && rounded <= options_.cap_bytes) wanted = rounded;
    } else {
      wanted = std::max(options_.first_segment_bytes, counters_.segment_bytes);
      wanted = std::min(wanted, options_.segment_bytes);
      uint64_t size = options_.first_segment_bytes;
      while (size < wanted || size < bytes) size *= 2;
      while (size / 2 >= bytes && size > options_.cap_bytes - counters_.segment_bytes) size /= 2;
      wanted = size;
    }
    if (MakeWay(wanted)) {
      Segment* segment = AddSegment(wanted, whole);
      if (segment == nullptr) return nullptr;
      if (!whole) continue;
      ++segment->blocks;
      return new Block(segment, 0, bytes);
    }
    // Blocks that are kept in other sizes may free enough room.
  }
  return nullptr;
}

Arena::Segment* Arena::AddSegment(uint64_t bytes, bool whole) {
  auto memory = SharedMemory::Create(bytes, SharedMemory::Writers::kCreator);
  if (!memory.ok()) return nullptr;
  segments_.push_back(
      std::make_unique<Segment>(*std::move(memory), next_id_ += 0x9E3779B97F4A7C15, whole));
  counters_.segment_bytes += segments_.back()->memory->bytes();
  ++counters_.segments;
  ++counters_.segments_made;
  return segments_.back().get();
}

bool Arena::MakeWay(uint64_t bytes) {
  if (counters_.segment_bytes + bytes <= options_.cap_bytes) return true;
  for (auto& of_class : ready_) {
    for (Block* block : of_class) Dissolve(block);
    of_class.clear();
  }
  if (bytes <= options_.cap_bytes) DropEmptySegments(options_.cap_bytes - bytes);
  return counters_.segment_bytes + bytes <= options_.cap_bytes;
}

void Arena::DropEmptySegments(uint64_t until_bytes) {
  for (size_t i = segments_.size(); i-- > 0 && counters_.segment_bytes > until_bytes;) {
    if (!segments_[i]->empty()) continue;
    counters_.segment_bytes -= segments_[i]->memory->bytes();
    --counters_.segments;
    segments_.erase(segments_.begin() + static_cast<ptrdiff_t>(i));
    dropped_.fetch_add(1, std::memory_order_release);
  }
}

void Arena::Dissolve(Block* block) {
  Segment* segment = block->segment;
  counters_.kept_bytes -= block->bytes();
  if (!segment->whole) segment->buddy->Give(block->offset, block->bytes());
  --segment->blocks;
  delete block;
}

void Arena::GiveBack(Block* block) {
  MutexLock lock(&mu_);
  counters_.used_bytes -= block->bytes();
  counters_.kept_bytes += block->bytes();
  ready_[ClassOf(block->bytes())].push_back(block);
}

void Arena::Trim() {
  DropKept();
  MutexLock lock(&mu_);
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (!class_used_[i]) {
      for (Block* block : ready_[i]) Dissolve(block);
      ready_[i].clear();
    }
    class_used_[i] = false;
  }
  DropEmptySegments(options_.first_segment_bytes);
}

std::string Arena::Explain() const {
  const ArenaCounters now = counters();
  return absl::StrCat("shared memory: ", now.used_bytes, " bytes lent of ", now.segment_bytes,
                      " in ", now.segments, " segments (", now.huge_bytes,
                      " in reserved huge pages, transparent ones for the rest: ",
                      TransparentHugePages(), "), cap ", options_.cap_bytes);
}

ArenaCounters Arena::counters() const {
  MutexLock lock(&mu_);
  ArenaCounters now = counters_;
  for (const auto& segment : segments_) {
    if (segment->memory->reserved_huge_pages()) now.huge_bytes += segment->memory->bytes();
  }
  return now;
}

void Arena::KeepWhile(std::shared_ptr<void> holder, absl::AnyInvocable<bool()> over) {
  MutexLock lock(&kept_mu_);
  kept_.push_back({std::move(holder), std::move(over)});
}

void Arena::StopKeeping() {
  std::vector<Kept> kept;  // Destroyed without the lock, as in DropKept().
  {
    MutexLock lock(&kept_mu_);
    kept.swap(kept_);
  }
}

void Arena::DropKept() {
  // They are asked and destroyed without the lock, because they drop storages of whoever shares
  // them: one of them may allocate here in place.
  std::vector<Kept> asked;
  {
    MutexLock lock(&kept_mu_);
    if (asker_ == std::this_thread::get_id()) return;
    // What another thread is asking about may be free in a moment.
    while (asker_ != std::thread::id()) asked_.Wait(&kept_mu_);
    asker_ = std::this_thread::get_id();
    asked.swap(kept_);
  }
  asked.erase(std::remove_if(asked.begin(), asked.end(), [](Kept& kept) { return kept.over(); }),
              asked.end());
  MutexLock lock(&kept_mu_);
  std::move(asked.begin(), asked.end(), std::back_inserter(kept_));
  asker_ = std::thread::id();
  asked_.NotifyAll();
}

}  // namespace tryst
