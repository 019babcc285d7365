#ifndef TRYST_CHANNEL_ARENA_SHARED_MEMORY_H_
#define TRYST_CHANNEL_ARENA_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace tryst {

// A file descriptor that is closed with its owner.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

// Memory that processes share: a memfd. It has no name that could be left behind, and lasts as long
// as a process maps it. It is sealed against resizing, so no peer can take pages away from a
// reader.
class SharedMemory {
 public:
  enum class Writers {
    kEverybody,  // For rings.
    kCreator,    // For tensors: the kernel refuses every other writable mapping.
  };

  static constexpr uint64_t kHugePageBytes = 2 << 20;

  // Zeroed memory, rounded up to whole pages, all of which are allocated, so that touching it
  // cannot fail later. Tensors of whole huge pages use reserved ones while there are any; otherwise
  // the kernel is asked for transparent ones. kResourceExhausted: no memory or no descriptor.
  // kUnimplemented: an old kernel.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(uint64_t bytes, Writers writers);
  static uint64_t Rounded(uint64_t bytes);  // To whole pages.
  // Maps memory that a peer has sent, and closes `fd`. kDataLoss: it is not a memfd, not exactly
  // `bytes` long, or not sealed. In reserved huge pages a missing page would kill us when we touch
  // it. So they are accepted only for reading, sealed against holes, and complete.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(OwnedFd fd, uint64_t bytes,
                                                           bool writable);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // To be passed on; -1 if the memory was mapped.
  bool reserved_huge_pages() const { return huge_; }

 private:
  SharedMemory(OwnedFd fd, uint8_t* data, uint64_t bytes, bool huge)
      : fd_(std::move(fd)), data_(data), bytes_(bytes), huge_(huge) {}
  static absl::StatusOr<std::unique_ptr<SharedMemory>> CreateOf(uint64_t bytes, Writers writers,
                                                                bool huge);

  OwnedFd fd_;
  uint8_t* const data_;
  const uint64_t bytes_;
  const bool huge_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_ARENA_SHARED_MEMORY_H_
