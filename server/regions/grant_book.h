#ifndef TRYST_SERVER_REGIONS_GRANT_BOOK_H_
#define TRYST_SERVER_REGIONS_GRANT_BOOK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/arena/shared_memory.h"

namespace tryst {

// A grant lets another process of this host and user copy of a region by itself, with
// process_vm_readv, which asks the kernel for leave each time. The owner gives it in an answer and
// waits for no reader: each opening of a region has a random mark in the owner's memory, which is
// cleared before the memory is let go of, and a reader reads it last, in the call that reads the
// bytes. Where the memory is, and whose the process is, stands in a file of the owner's that has no
// name, and that only this code writes (GrantFile); so an answer cannot lead a reader to memory of
// any other process. Where the memory lies in a segment of the owner's arena, a reader may map that
// and copy from there, and reads the mark behind it.

using GrantMark = std::array<uint64_t, 2>;  // {}: none.

// What stands in the file of the owner, before its slots. Each says where a region's memory is.
struct GrantFile {
  static constexpr char kName[] = "tryst-grants";
  static constexpr size_t kSlots = 1024;

  struct Slot {
    uint64_t address, bytes;
    GrantMark mark;
  };
  // One for each slot, behind all of them. Older releases have none, and leave it unread.
  struct Place {
    int64_t fd;      // The segment has it, in the owner.
    uint64_t bytes;  // The segment has so many. 0: the region lies in none.
    uint64_t offset;
  };
  static constexpr size_t SlotAt(size_t slot) { return sizeof(GrantFile) + slot * sizeof(Slot); }
  static constexpr size_t PlaceAt(size_t slot) { return SlotAt(kSlots) + slot * sizeof(Place); }

  uint64_t version;
  uint64_t incarnation;
  uint64_t marks;     // Where those of the slots are in its memory.
  char worker[1000];  // Its name, and zeros.
};
inline constexpr uint64_t kGrantFileVersion = 1;

// What an answer says of a grant; the rest is in the file.
struct Grant {
  int64_t pid = 0;
  int64_t fd = 0;
  uint64_t slot = 0;
  GrantMark mark = {};
};
std::string WriteGrant(const Grant& grant);
// kInvalidArgument: it is none.
absl::StatusOr<Grant> ReadGrant(absl::string_view text);

// What a worker has granted. Thread-safe.
class GrantBook {
 public:
  // One opening of a region.
  class Opening {
   public:
    ~Opening() { End(); }
    const std::string& text() const { return text_; }  // What WriteGrant() has written.
    // What readers copy from now on counts for nothing. Memory that is written later is written
    // after that for them, too.
    void End();

   private:
    friend class GrantBook;
    Opening(GrantBook* book, size_t slot, std::string text, std::shared_ptr<SharedMemory> segment)
        : book_(book), slot_(slot), text_(std::move(text)), segment_(std::move(segment)) {}
    GrantBook* const book_;
    const size_t slot_;
    const std::string text_;
    const std::shared_ptr<SharedMemory> segment_;  // Its descriptor stays what the file says.
    std::atomic<bool> ended_{false};
  };

  // Memory in a segment that other processes can map. A null segment: it is in none.
  struct Shared {
    std::shared_ptr<SharedMemory> segment;
    uint64_t offset = 0;
  };
  using FindShared = std::function<Shared(const void* memory)>;

  // `refuses`: why this worker gives no grants. Empty: it does.
  GrantBook(std::string worker, uint64_t incarnation, std::string refuses);
  ~GrantBook();
  GrantBook(const GrantBook&) = delete;
  GrantBook& operator=(const GrantBook&) = delete;

  // Before the first Open(). `find` is called by Open() and lasts until Stop().
  void SetFindShared(FindShared find);
  // kUnimplemented: this worker gives none. kResourceExhausted: kSlots regions have some. This
  // outlives the result.
  absl::StatusOr<std::unique_ptr<Opening>> Open(const void* memory, uint64_t bytes);
  // Ends all, and gives none any more.
  void Stop();

 private:
  struct Mark {
    void Clear();
    std::atomic<uint64_t> words[2];
  };
  absl::Status Make() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Shared Find(const void* memory, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string worker_;
  const uint64_t incarnation_;
  Mutex mu_;
  absl::Status refuses_ ABSL_GUARDED_BY(mu_);
  FindShared find_ ABSL_GUARDED_BY(mu_);
  OwnedFd file_ ABSL_GUARDED_BY(mu_);
  Mark* marks_ = nullptr;  // Constant once there is an opening. A child of ours sees zeros.
  std::vector<size_t> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_GRANT_BOOK_H_
