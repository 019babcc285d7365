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

// Memory that processes share: a memfd, which has no name to be left behind and lasts as
// long as anybody maps it. It is sealed against a change of its size, so that no peer can
// take pages away under a reader.
class SharedMemory {
 public:
  enum class Writers {
    kEverybody,  // Rings.
    kCreator,    // Tensors: the kernel refuses every other mapping that could write.
  };

  static constexpr uint64_t kHugePageBytes = 2 << 20;

  // Zeroed, rounded up to whole pages, all of them there: touching it cannot fail later. Tensors
  // of whole huge pages lie in reserved ones while there are any; else the kernel is asked for
  // transparent ones. kResourceExhausted: no memory or no descriptor. kUnimplemented: an old
  // kernel.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(uint64_t bytes, Writers writers);
  static uint64_t Rounded(uint64_t bytes);  // To whole pages.
  // Maps what a peer has sent, and closes `fd`. Nothing about it is believed: kDataLoss
  // unless it is a memfd, exactly `bytes` long and sealed. Of reserved huge pages a missing one
  // would kill us when we touch it: those are taken only to be read, sealed against holes, and
  // with every page there.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(OwnedFd fd, uint64_t bytes,
                                                           bool writable);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // To be passed on; -1 of a mapped one.
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
