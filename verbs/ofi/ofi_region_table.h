#ifndef TRYST_VERBS_OFI_OFI_REGION_TABLE_H_
#define TRYST_VERBS_OFI_OFI_REGION_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "verbs/nic.h"

namespace tryst {

// What our local keys stand for. libfabric uses a pointer for each region instead of a key, and not
// every provider validates it. Thread-safe; finding takes no lock.
class OfiRegionTable {
 public:
  // Gives the region a key, never 0. kResourceExhausted.
  absl::StatusOr<uint32_t> Add(uint64_t address, uint64_t bytes, uint32_t access, void* descriptor);
  void Remove(uint32_t key);
  // Whether the entry lies in its region, which must be writable if `to_write`. Also returns its
  // descriptor.
  bool Find(const Entry& entry, bool to_write, void** descriptor) const;

 private:
  static constexpr uint32_t kChunkBits = 10;
  static constexpr uint32_t kChunk = 1 << kChunkBits;
  static constexpr uint32_t kChunks = 1 << 10;
  static constexpr uint32_t kIndexBits = 20;

  // The key is written last and read first.
  struct Row {
    std::atomic<uint32_t> key{0};
    std::atomic<uint32_t> access{0};
    std::atomic<uint64_t> address{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<void*> descriptor{nullptr};
  };

  Row* RowAt(uint32_t index) const;

  std::array<std::atomic<Row*>, kChunks> chunks_{};
  Mutex mu_;
  std::vector<std::unique_ptr<Row[]>> owned_ ABSL_GUARDED_BY(mu_);
  // Keys to be reused, with their next generation.
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_REGION_TABLE_H_
