#include "channel/shm/parts_room.h"

namespace tryst {

uint64_t PartsRoom::Find(uint64_t bytes, const GivenReferences& given) {
  while (!parts_.empty() && !given.given(parts_.front().reference, parts_.front().generation)) {
    parts_.pop_front();
  }
  const uint64_t wanted = Rounded(bytes);
  if (parts_.empty()) return wanted <= bytes_ - next_ ? next_ : wanted <= bytes_ ? 0 : kNone;
  const uint64_t oldest = parts_.front().begin;
  if (next_ > oldest) {
    if (wanted <= bytes_ - next_) return next_;
    return wanted <= oldest ? 0 : kNone;  // A part never wraps around the end.
  }
  return wanted <= oldest - next_ ? next_ : kNone;
}

void PartsRoom::Gave(uint64_t offset, uint64_t bytes, uint16_t reference, uint16_t generation) {
  parts_.push_back({offset, reference, generation});
  next_ = offset + Rounded(bytes);
}

}  // namespace tryst
