#ifndef TRYST_SERVER_REGIONS_MAPPED_SEGMENTS_H_
#define TRYST_SERVER_REGIONS_MAPPED_SEGMENTS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "channel/arena/shared_memory.h"

namespace tryst {

// Segments of other processes' arenas that are mapped here for reading, each once. Thread-safe.
class MappedSegments {
 public:
  // It is mapped until nobody has the result any more. kResourceExhausted: so much is mapped
  // already; other codes as of SharedMemory::Map().
  absl::StatusOr<std::shared_ptr<const SharedMemory>> Map(OwnedFd fd, uint64_t bytes);
  uint64_t bytes();  // That are mapped now.

 private:
  // A mapping keeps the pages of an owner that is gone.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 40;

  using File = std::pair<dev_t, ino_t>;  // No other file has them while it is mapped.
  uint64_t CountAndForget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  std::map<File, std::weak_ptr<const SharedMemory>> segments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_SERVER_REGIONS_MAPPED_SEGMENTS_H_
