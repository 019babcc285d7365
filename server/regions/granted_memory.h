#ifndef TRYST_SERVER_REGIONS_GRANTED_MEMORY_H_
#define TRYST_SERVER_REGIONS_GRANTED_MEMORY_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "channel/arena/shared_memory.h"
#include "rendezvous/selection.h"
#include "server/regions/grant_book.h"
#include "server/regions/mapped_segments.h"

namespace tryst {

// What one call of the kernel copies, and both ends of it.
struct GrantedPart {
  static constexpr size_t kMaxSpans = 127;

  iovec there[kMaxSpans + 1], here[kMaxSpans + 1];
  size_t theres = 0, heres = 0;
  uint64_t bytes = 0;
};

// A region of another process that may be copied from (grant_book.h). Thread-safe.
class GrantedMemory {
 public:
  // `text` is what the worker of that life has answered. It is tried before this returns.
  // kUnavailable: it was closed meanwhile, or the process is gone. Any other failure tells why the
  // worker's grants are of no use here.
  // A region in a segment of its owner's is mapped by `segments`, unless that fails; null: none is.
  static absl::StatusOr<std::shared_ptr<const GrantedMemory>> Open(
      absl::string_view text, absl::string_view worker, uint64_t incarnation,
      MappedSegments* segments = nullptr);

  // The next part of `left` bytes at most, from `*from` of the region on to `*to` of `into`; moves
  // both behind it. False: a span lies outside of the region. REQUIRES: the selections were
  // checked, and have so many bytes left.
  bool Plan(const Selection& wanted, const Selection& landing, void* into, uint64_t left,
            SelectionPlace* from, SelectionPlace* to, GrantedPart* part) const;
  // Copies it. Unless it is OK, what lies there now is not the region's; codes as of Open(), and
  // kDataLoss: the kernel cannot read that memory.
  absl::Status Read(GrantedPart* part) const;

  // Copies `bytes`, whose spans all lie in `range`, by one call, which brings the whole range to
  // `room`. Codes as of Read(); unless it is OK, nothing was written to `into`. REQUIRES: the
  // selections were checked, with bytes() and with that of `into`; `room` has range.bytes.
  absl::Status ReadRange(const Selection& wanted, const Selection& landing, void* into,
                         uint64_t bytes, const ByteSpan& range, uint8_t* room) const;

  // Whether it is mapped: then it is copied by these, which cost no call of the kernel for each
  // part.
  bool mapped() const { return segment_ != nullptr; }
  // Copies `bytes`, from `*from` of the region to `*to` of `into`, and moves both behind them. What
  // it has copied is the region's if StillOpen() says so afterwards. `streams`: around the caches.
  // REQUIRES: mapped(); the selections were checked, with bytes() and with that of `into`.
  void Copy(const Selection& wanted, const Selection& landing, void* into, uint64_t bytes,
            bool streams, SelectionPlace* from, SelectionPlace* to) const;
  // Codes as of Open().
  absl::Status StillOpen() const;

  uint64_t bytes() const { return bytes_; }
  // The copy is for Plan() and Read() alone, and does not keep the segment.
  std::shared_ptr<const GrantedMemory> Unmapped() const;

 private:
  GrantedMemory() = default;

  pid_t pid_ = 0;
  uint64_t address_ = 0, bytes_ = 0;
  uint64_t mark_address_ = 0;
  GrantMark mark_ = {};
  std::shared_ptr<const SharedMemory> segment_;
  const uint8_t* data_ = nullptr;  // Where the region begins, if it is mapped.
};

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_GRANTED_MEMORY_H_
