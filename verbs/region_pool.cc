#include "verbs/region_pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

#ifdef ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace tryst {
namespace {

void Poison(uint8_t* data, uint64_t bytes) {
#ifndef NDEBUG
  memset(data, RegionPool::kPoison, bytes);
#endif
#ifdef ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(data, bytes);
#endif
  static_cast<void>(data);
  static_cast<void>(bytes);
}

void Unpoison(uint8_t* data, uint64_t bytes) {
#ifdef ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
  static_cast<void>(data);
  static_cast<void>(bytes);
}

constexpr uint64_t kHugePage = 2u << 20;
constexpr uint64_t kLargestAlignment = 4096;

uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

std::string DescribeUses(const std::vector<RegionPoolUse>& uses) {
  std::map<uint64_t, std::string> by_size;
  uint64_t sum = 0;
  for (const RegionPoolUse& use : uses) {
    std::string& text = by_size[use.chunk_bytes];
    absl::StrAppend(&text, text.empty() ? "" : " + ", use.name, " ", use.chunks);
    sum += use.chunk_bytes * use.chunks;
  }
  std::string text;
  for (const auto& [bytes, uses_text] : by_size) {
    absl::StrAppend(&text, text.empty() ? "" : " + ", bytes, " B x (", uses_text, ")");
  }
  return absl::StrCat(text, " = ", sum, " B");
}

// The memory and who has which chunk of it. Lives as long as the pool or any chunk.
class RegionChunk::Arena {
 public:
  Arena(uint8_t* memory, uint64_t bytes, RegionPoolWatcher* watcher)
      : memory_(memory), bytes_(bytes), watcher_(watcher) {}

  ~Arena() {
    Unpoison(memory_, bytes_);
    munmap(memory_, bytes_);
  }

  // Before any use; in ascending order.
  void AddClass(uint64_t chunk_bytes, size_t chunks) {
    MutexLock lock(&mu_);
    Class added;
    added.counters.chunk_bytes = chunk_bytes;
    added.counters.chunks = chunks;
    added.free.reserve(chunks);
    // The lowest addresses go first.
    for (size_t i = chunks; i > 0; --i) {
      added.free.push_back(memory_ + filled_ + (i - 1) * chunk_bytes);
    }
    filled_ += chunk_bytes * chunks;
    classes_.push_back(std::move(added));
    chunk_bytes_.push_back(chunk_bytes);
  }

  // The index of the class that `bytes` belong to.
  size_t ClassOf(uint64_t bytes) const {
    const auto found = std::lower_bound(chunk_bytes_.begin(), chunk_bytes_.end(), bytes);
    TRYST_CHECK(found != chunk_bytes_.end())
        << bytes << " B, but the largest chunk has " << chunk_bytes_.back();
    return static_cast<size_t>(found - chunk_bytes_.begin());
  }

  uint8_t* Take(size_t index) {
    uint8_t* data = nullptr;
    {
      MutexLock lock(&mu_);
      Class& from = classes_[index];
      if (from.free.empty()) {
        ++from.counters.no_room;
        return nullptr;
      }
      data = from.free.back();
      from.free.pop_back();
      ++from.counters.takes;
      from.counters.taken_max = std::max(from.counters.taken_max, ++from.counters.taken);
    }
    Unpoison(data, chunk_bytes_[index]);
    if (watcher_ != nullptr) watcher_->OnTake(data, chunk_bytes_[index]);
    return data;
  }

  void Give(size_t index, uint8_t* data) {
    const uint64_t bytes = chunk_bytes_[index];
    if (watcher_ != nullptr) watcher_->OnGive(data, bytes);
    Poison(data, bytes);
    MutexLock lock(&mu_);
    --classes_[index].counters.taken;
    classes_[index].free.push_back(data);
  }

  std::vector<RegionPoolClass> Classes() const {
    MutexLock lock(&mu_);
    std::vector<RegionPoolClass> all;
    for (const Class& each : classes_) all.push_back(each.counters);
    return all;
  }

  // Before any use, once the NIC has seen the memory.
  void PoisonAll() { Poison(memory_, bytes_); }

  uint8_t* memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t largest() const { return chunk_bytes_.back(); }
  uint64_t chunk_bytes(size_t index) const { return chunk_bytes_[index]; }

 private:
  struct Class {
    RegionPoolClass counters;
    std::vector<uint8_t*> free;  // The last is the next.
  };

  uint8_t* const memory_;
  const uint64_t bytes_;
  RegionPoolWatcher* const watcher_;
  std::vector<uint64_t> chunk_bytes_;  // Constant after construction; ascending.
  uint64_t filled_ = 0;

  mutable Mutex mu_;
  std::vector<Class> classes_ ABSL_GUARDED_BY(mu_);
};

RegionChunk::RegionChunk(RegionChunk&& other) noexcept
    : arena_(std::move(other.arena_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      class_index_(other.class_index_) {}

RegionChunk& RegionChunk::operator=(RegionChunk&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  arena_ = std::move(other.arena_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = other.bytes_;
  class_index_ = other.class_index_;
  return *this;
}

void RegionChunk::Reset() {
  if (data_ == nullptr) return;
  arena_->Give(class_index_, std::exchange(data_, nullptr));
  arena_.reset();
}

absl::StatusOr<std::unique_ptr<RegionPool>> RegionPool::Create(Nic* nic,
                                                               const RegionPoolOptions& options) {
  const uint64_t alignment = options.alignment_bytes;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kLargestAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("region pool: alignment of ", alignment, " B"));
  }
  std::map<uint64_t, size_t> classes;
  uint64_t sum = 0;
  for (const RegionPoolUse& use : options.uses) {
    if (use.chunk_bytes == 0 || use.chunks == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "region pool: ", use.name, " wants ", use.chunks, " chunks of ", use.chunk_bytes, " B"));
    }
    const bool fits = use.chunk_bytes <= options.max_bytes &&
                      use.chunks <= options.max_bytes / RoundUp(use.chunk_bytes, alignment) &&
                      RoundUp(use.chunk_bytes, alignment) * use.chunks <= options.max_bytes - sum;
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat("region pool: ", DescribeUses(options.uses),
                                                     " exceeds ", options.max_bytes, " B"));
    }
    classes[RoundUp(use.chunk_bytes, alignment)] += use.chunks;
    sum += RoundUp(use.chunk_bytes, alignment) * use.chunks;
  }
  if (sum == 0) return absl::InvalidArgumentError("region pool: no use at all");

  const uint64_t mapped = RoundUp(sum, sum >= kHugePage ? kHugePage : kLargestAlignment);
  void* const memory =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("region pool: mmap of ", mapped, " B: ", strerror(errno)));
  }
  // Hints: fewer translations for the NIC to hold, and no copy of pinned pages in a child.
  madvise(memory, mapped, MADV_HUGEPAGE);
  madvise(memory, mapped, MADV_DONTFORK);
  auto arena = std::make_shared<Arena>(static_cast<uint8_t*>(memory), mapped, options.watcher);
  for (const auto& [chunk_bytes, chunks] : classes) arena->AddClass(chunk_bytes, chunks);
  absl::StatusOr<std::unique_ptr<Region>> region = nic->RegisterRegion(memory, sum, options.access);
  if (!region.ok()) return region.status();
  arena->PoisonAll();
  return std::unique_ptr<RegionPool>(new RegionPool(std::move(arena), *std::move(region)));
}

RegionPool::RegionPool(std::shared_ptr<Arena> arena, std::unique_ptr<Region> region)
    : arena_(std::move(arena)), region_(std::move(region)) {}

RegionPool::~RegionPool() = default;

RegionChunk RegionPool::Take(uint64_t bytes) {
  const size_t index = arena_->ClassOf(bytes);
  RegionChunk chunk;
  chunk.data_ = arena_->Take(index);
  if (chunk.data_ == nullptr) return chunk;
  chunk.arena_ = arena_;
  chunk.bytes_ = arena_->chunk_bytes(index);
  chunk.class_index_ = index;
  return chunk;
}

uint64_t RegionPool::max_chunk_bytes() const { return arena_->largest(); }

std::vector<RegionPoolClass> RegionPool::Classes() const { return arena_->Classes(); }

size_t RegionPool::taken() const {
  size_t sum = 0;
  for (const RegionPoolClass& each : arena_->Classes()) sum += each.taken;
  return sum;
}

}  // namespace tryst
