#ifndef TRYST_CHANNEL_SHM_RING_H_
#define TRYST_CHANNEL_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tryst {

// One direction of a link: cells of a fixed size in shared memory, with one writer and one reader.
// A cell begins with its sequence number, which is stored last. So the reader polls the very cache
// line that brings the message, and a message costs one or two line transfers.
//
// The other side may be hostile. A reader copies each cell once and works on the copy. A writer
// believes the reader's count only if it is possible.
inline constexpr size_t kCacheLine = 64;

// Poller thread only.
template <size_t kCellBytes>
class RingWriter {
 public:
  RingWriter() = default;
  // `cells` is a power of two. `read` is where the reader stores how far it has read.
  RingWriter(uint8_t* memory, uint32_t cells, const std::atomic<uint32_t>* read)
      : memory_(memory), cells_(cells), read_(read) {}

  // Whether `count` cells can be written now.
  bool HasRoom(uint32_t count) {
    if (cells_ - (next_ - read_cached_) >= count) return true;
    const uint32_t read = read_->load(std::memory_order_acquire);
    if (next_ - read > cells_) return false;  // An impossible count: such a peer gets no room.
    read_cached_ = read;
    return cells_ - (next_ - read_cached_) >= count;
  }
  // The next cell to fill; its first 4 bytes belong to the ring. REQUIRES: HasRoom(1).
  uint8_t* cell() { return memory_ + size_t{next_ & (cells_ - 1)} * kCellBytes; }
  void Publish() {
    std::atomic<uint32_t>* sequence = reinterpret_cast<std::atomic<uint32_t>*>(cell());
    sequence->store(++next_, std::memory_order_release);
  }
  uint32_t written() const { return next_; }

 private:
  uint8_t* memory_ = nullptr;
  uint32_t cells_ = 0;
  const std::atomic<uint32_t>* read_ = nullptr;
  uint32_t next_ = 0;
  uint32_t read_cached_ = 0;
};

template <size_t kCellBytes>
class RingReader {
 public:
  RingReader() = default;
  RingReader(const uint8_t* memory, uint32_t cells, std::atomic<uint32_t>* read)
      : memory_(memory), cells_(cells), read_(read) {}

  bool Ready() const {
    return reinterpret_cast<const std::atomic<uint32_t>*>(cell())->load(
               std::memory_order_acquire) == next_ + 1;
  }
  // Copies the next cell. Its byte at `long_at` tells whether it is longer than one cache line; if
  // not, the rest of the copy is zeroes. REQUIRES: Ready().
  void Take(uint8_t* copy, size_t long_at) {
    memcpy(copy, cell(), kCacheLine);
    if (kCellBytes > kCacheLine) {
      if (copy[long_at] != 0) {
        memcpy(copy + kCacheLine, cell() + kCacheLine, kCellBytes - kCacheLine);
      } else {
        memset(copy + kCacheLine, 0, kCellBytes - kCacheLine);
      }
    }
    // From here on only the copy is read, whatever the peer does to the original.
    __asm__ __volatile__("" : : "r"(copy) : "memory");
    ++next_;
    if (next_ - told_ >= cells_ / 8) {
      told_ = next_;
      read_->store(next_, std::memory_order_release);
    }
  }

  uint32_t taken() const { return next_; }

 private:
  const uint8_t* cell() const { return memory_ + size_t{next_ & (cells_ - 1)} * kCellBytes; }

  const uint8_t* memory_ = nullptr;
  uint32_t cells_ = 0;
  std::atomic<uint32_t>* read_ = nullptr;
  uint32_t next_ = 0;
  uint32_t told_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_RING_H_
