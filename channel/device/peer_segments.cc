#include "channel/device/peer_segments.h"

#include <iterator>
#include <utility>

#include "base/log.h"

namespace tryst {

void PeerSegments::OnMapped(const void* data, uint64_t bytes) {
  MutexLock lock(&mu_);
  segments_[static_cast<const char*>(data)].bytes = bytes;
}

void PeerSegments::OnUnmapping(const void* data) {
  PinnedMemory pinned;  // Unregistered without holding the lock.
  MutexLock lock(&mu_);
  auto found = segments_.find(static_cast<const char*>(data));
  TRYST_CHECK(found != segments_.end());
  pinned = std::move(found->second.pinned);
  segments_.erase(found);
}

bool PeerSegments::Reaches(const Gpu* gpu, const void* data, uint64_t bytes) {
  const char* const at = static_cast<const char*>(data);
  const char* begin = nullptr;
  uint64_t whole = 0;
  {
    MutexLock lock(&mu_);
    auto after = segments_.upper_bound(at);
    if (after == segments_.begin()) return false;
    auto& [start, segment] = *std::prev(after);
    if (at + bytes > start + segment.bytes) return false;
    if (segment.state != State::kNew) return segment.state == State::kRegistered;
    segment.state = State::kRegistering;
    begin = start;
    whole = segment.bytes;
  }
  auto pinned = PinnedMemory::RegisterReadOnly(gpu, begin, whole);
  MutexLock lock(&mu_);
  // The segment still exists, because the caller holds a tensor in it.
  Segment& segment = segments_.find(begin)->second;
  segment.state = pinned.ok() ? State::kRegistered : State::kRefused;
  if (pinned.ok()) {
    segment.pinned = *std::move(pinned);
  } else {
    if (refusal_.empty()) {
      TRYST_LOG(Warning) << "tensors in other workers' shared memory are copied by the CPU before "
                            "a GPU reads them, which is slower: "
                         << pinned.status().message();
    }
    refusal_ = std::string(pinned.status().message());
  }
  return segment.state == State::kRegistered;
}

std::string PeerSegments::refusal() const {
  MutexLock lock(&mu_);
  return refusal_;
}

}  // namespace tryst
