#include "verbs/soft/soft_lane.h"

#include <algorithm>
#include <utility>

namespace tryst {

void SoftLane::GiveBackBatch(SoftLoans<SoftBatch>* batches) {
  out_remote_key = 0;
  if (out == nullptr) return;
  out->Clear();
  batches->Give(std::move(out));
}

void SoftLane::GiveBackStaging(SoftLoans<SoftStaging>* stagings) {
  begin = end = 0;
  stagings->Give(std::move(staging));
}

void SoftLane::Unpin(SoftRegionTable* regions) {
  if (pinned != nullptr) regions->Unpin(pinned);
  pinned = nullptr;
}

int Gather(const Entry* entries, int count, uint64_t offset, uint64_t bytes, iovec* out, int max) {
  int pieces = 0;
  for (int i = 0; i < count && bytes > 0 && pieces < max; ++i) {
    if (offset >= entries[i].bytes) {
      offset -= entries[i].bytes;
      continue;
    }
    const uint64_t take = std::min(bytes, entries[i].bytes - offset);
    out[pieces++] = {reinterpret_cast<void*>(entries[i].address + offset),
                     static_cast<size_t>(take)};
    bytes -= take;
    offset = 0;
  }
  return pieces;
}

}  // namespace tryst
