#ifndef TRYST_CHANNEL_ARENA_BUDDY_H_
#define TRYST_CHANNEL_ARENA_BUDDY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tryst {

// Which parts of a segment are in use. Its tables lie outside that memory, where no peer can write
// them. Blocks are buddies of powers of two. The part of a block that a request does not need is
// given back at once, in eighths. Needs external synchronisation.
class Buddy {
 public:
  static constexpr uint64_t kGranule = 1024;
  static constexpr uint64_t kNone = UINT64_MAX;

  // `bytes` is a power of two, at least kGranule.
  explicit Buddy(uint64_t bytes);

  // How much a request of `bytes` really takes.
  static uint64_t Rounded(uint64_t bytes);
  // Returns the offset of `Rounded(bytes)` bytes, aligned to the largest power of two in that;
  // kNone: no room.
  uint64_t Take(uint64_t bytes);
  void Give(uint64_t offset, uint64_t bytes);  // REQUIRES: Take() returned `offset` for `bytes`.
  bool empty() const { return used_ == 0; }

 private:
  static constexpr uint32_t kNil = UINT32_MAX;
  struct Leaf {
    uint32_t next = kNil;
    uint32_t previous = kNil;
    int8_t free_order = -1;  // The order of the free block that begins here.
  };
  static int OrderOf(uint64_t bytes);  // The smallest order that holds `bytes`.
  void Push(uint32_t leaf, int order);
  void Remove(uint32_t leaf, int order);
  void GiveBlock(uint32_t leaf, int order);
  // Gives [offset, offset + bytes) back as blocks.
  void GiveRange(uint64_t offset, uint64_t bytes);

  const int orders_;  // The whole is one block of order orders_ - 1.
  std::vector<Leaf> leaves_;
  std::vector<uint32_t> heads_;  // By order.
  uint64_t used_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_ARENA_BUDDY_H_
