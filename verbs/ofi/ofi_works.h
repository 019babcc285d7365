#ifndef TRYST_VERBS_OFI_OFI_WORKS_H_
#define TRYST_VERBS_OFI_OFI_WORKS_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_endpoint.h"
#include "verbs/ofi/ofi_region_table.h"

namespace tryst {

struct OfiWork {
  OfiContext context;
  uint64_t id = 0;
  SendOp op = SendOp::kWrite;
  bool signaled = true;
  bool done = false;
  CompletionStatus status = CompletionStatus::kOk;
  uint32_t vendor_error = 0;
  uint32_t pieces = 0;  // How many parts its memory has.
  uint32_t immediate = 0;
  uint32_t remote_key = 0;
  uint64_t remote_address = 0;
  uint64_t bytes = 0;
  uint64_t sent = 0;        // How many frames of a send have gone.
  uint32_t frames_out = 0;  // How many of them are under way.

  bool is_send() const { return op == SendOp::kSend; }
};

// The posted works of one queue pair, counted from 0: [head, issue) are with the provider,
// [issue, tail) wait. The caller sees to it that no more than `depth` are there. One thread.
class OfiWorks {
 public:
  OfiWorks(const OfiRegionTable* regions, const QueuePairOptions& options);

  // Where the bytes of inline works are kept: a piece of equal size for each of `depth` works.
  void KeepInlineAt(uint8_t* memory, void* descriptor);

  // Adds a work. If it cannot be issued, its status says why.
  void Add(const SendWork& from);
  OfiWork& At(uint64_t index) { return works_[index % works_.size()]; }
  OfiWork& InSlot(uint32_t slot) { return works_[slot]; }  // By its context's index.
  absl::Span<const iovec> Pieces(uint64_t index) const;
  void** Descriptors(uint64_t index) { return &descriptors_[FirstPart(index)]; }
  // Copies `count` bytes of the work's, `from` that many behind its first.
  void Copy(uint64_t index, uint64_t from, uint64_t count, uint8_t* out) const;

  bool empty() const { return head_ == tail_; }
  bool any_waits() const { return issue_ != tail_; }
  uint64_t next() const { return issue_; }
  OfiWork& oldest() { return At(head_); }
  void Issued() { ++issue_; }
  void Pop() { ++head_; }
  void NoneWaits() { issue_ = tail_; }

 private:
  size_t FirstPart(uint64_t index) const { return index % works_.size() * max_entries_; }

  const OfiRegionTable* const regions_;
  const size_t max_entries_;
  const size_t max_inline_bytes_;
  uint8_t* inline_ = nullptr;
  void* inline_descriptor_ = nullptr;
  std::vector<OfiWork> works_;
  std::vector<iovec> pieces_;
  std::vector<void*> descriptors_;
  uint64_t head_ = 0;
  uint64_t issue_ = 0;
  uint64_t tail_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_WORKS_H_
