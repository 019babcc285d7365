#ifndef TRYST_VERBS_OFI_OFI_RECEIVES_H_
#define TRYST_VERBS_OFI_OFI_RECEIVES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_frame.h"
#include "verbs/ofi/ofi_region_table.h"

namespace tryst {

// The receives posted on one queue pair. libfabric separates sends and immediates; here each takes
// the oldest receive, as on an RDMA NIC. Used by one thread.
class OfiReceives {
 public:
  OfiReceives(const OfiRegionTable* regions, uint32_t depth, uint32_t max_entries);

  // REQUIRES: there is room, and not too many entries.
  void Post(const ReceiveWork& work);
  bool empty() const { return head_ == tail_; }
  uint32_t posted() const { return static_cast<uint32_t>(tail_ - head_); }

  // Each of these three may complete a receive. REQUIRES: !empty().
  Completion TakeForImmediate(uint32_t immediate, uint64_t bytes);
  Completion Flush();
  // Copies a part of a send into the oldest receive's entries. True: that completes it,
  // successfully or not.
  bool Fill(const OfiFrame& frame, const uint8_t* payload, Completion* out);

 private:
  struct Posted {
    uint64_t id = 0;
    uint32_t entries = 0;
  };
  Completion Take();
  absl::Span<const Entry> EntriesOfFirst() const;
  CompletionStatus CheckFirst(uint64_t bytes) const;

  const OfiRegionTable* const regions_;
  const uint32_t depth_;
  const uint32_t max_entries_;
  std::vector<Posted> posted_;  // A ring.
  std::vector<Entry> entries_;  // max_entries_ for each receive.
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint64_t filled_ = 0;  // How much of the oldest receive the parts so far have filled.
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_RECEIVES_H_
