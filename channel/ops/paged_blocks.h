#ifndef TRYST_CHANNEL_OPS_PAGED_BLOCKS_H_
#define TRYST_CHANNEL_OPS_PAGED_BLOCKS_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "base/release_memory.h"

namespace tryst {

// A pool of more than kMostIdleObjects objects, of which none was in use for kIdleForNs, gives all
// of them back. The next step's burst mostly comes sooner, and finds its objects there.
inline constexpr size_t kMostIdleObjects = 1024;
inline constexpr int64_t kIdleForNs = 1'000'000'000;
// Names of thousands of keys stay longer: the next step would have to tell them again.
inline constexpr int64_t kKeysIdleForNs = 10'000'000'000;

// Objects whose addresses stay, in blocks of pages of their own: Clear() gives the memory back to
// the system, which the heap would keep for as long as anything lies behind it. A page is taken
// when its first object is made. Needs external synchronisation.
template <typename T>
class PagedBlocks {
 public:
  static constexpr size_t kBlockBytes = size_t{256} << 10;
  static constexpr size_t kPerBlock = kBlockBytes / sizeof(T);
  static_assert(kPerBlock > 0 && alignof(T) <= 4096, "an object fits into a block");

  PagedBlocks() = default;
  ~PagedBlocks() { Clear(); }
  PagedBlocks(const PagedBlocks&) = delete;
  PagedBlocks& operator=(const PagedBlocks&) = delete;

  template <typename... Args>
  T* Make(Args&&... args) {
    if (count_ == blocks_.size() * kPerBlock) AddBlock();
    T* const made = new (At(count_)) T(std::forward<Args>(args)...);
    ++count_;
    return made;
  }
  size_t size() const { return count_; }
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (size_t i = 0; i < count_; ++i) fn(*static_cast<const T*>(At(i)));
  }
  void Clear() {
    while (count_ > 0) static_cast<T*>(At(--count_))->~T();
    for (void* block : blocks_) munmap(block, kBlockBytes);
    ReleaseMemory(&blocks_);
  }

 private:
  void* At(size_t i) const {
    return static_cast<char*>(blocks_[i / kPerBlock]) + i % kPerBlock * sizeof(T);
  }
  void AddBlock() {
    blocks_.reserve(blocks_.size() + 1);
    void* const block =
        mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();  // As `new` does.
    blocks_.push_back(block);
  }

  std::vector<void*> blocks_;
  size_t count_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_PAGED_BLOCKS_H_
