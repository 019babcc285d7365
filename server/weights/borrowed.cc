#include "server/weights/borrowed.h"

#include "absl/strings/str_cat.h"

namespace tryst {

absl::StatusOr<Tensor> Borrowed::Borrow(uint64_t number, const Tensor& from, int64_t offset,
                                        const TensorShape& shape) {
  {
    MutexLock lock(&out_->mu);
    ++out_->boxes[number];
    ++out_->lent;
    out_->changed.NotifyAll();
  }
  const uint64_t before = static_cast<uint64_t>(offset) * DTypeBytes(from.dtype());
  char* const data = static_cast<char*>(from.mutable_data()) + before;
  MemorySpace space = from.space();
  if (space.kind == MemorySpace::Kind::kShared) space.segment_offset += before;
  return Tensor::Adopt(data, from.dtype(), shape, space, [out = out_, number, from] {
    MutexLock lock(&out->mu);
    const auto boxes = out->boxes.find(number);
    if (--boxes->second > 0) return;
    out->boxes.erase(boxes);
    out->changed.NotifyAll();
  });
}

uint64_t Borrowed::lent() const {
  MutexLock lock(&out_->mu);
  return out_->lent;
}

absl::Status Borrowed::AwaitReturned(uint64_t number, const Patience& patience,
                                     uint64_t lent) const {
  const WakesOnCancel wakes(patience, &out_->mu, &out_->changed);
  MutexLock lock(&out_->mu);
  for (;;) {
    const auto boxes = out_->boxes.find(number);
    if (boxes == out_->boxes.end()) return absl::OkStatus();
    const absl::Status waits = patience.Check(absl::StrCat(
        "version ", number, " still has ", boxes->second, " boxes of borrowed memory"));
    if (!waits.ok()) return waits;
    if (out_->lent != lent) return absl::UnavailableError("more was borrowed meanwhile");
    (void)out_->changed.WaitUntil(&out_->mu, patience.WakeAt());
  }
}

}  // namespace tryst
