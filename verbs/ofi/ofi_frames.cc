#include "verbs/ofi/ofi_frames.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "verbs/ofi/ofi_region.h"

namespace tryst {

absl::Status OfiFrames::Open(OfiDevice* device, size_t extra_bytes) {
  memory_.resize((kIn + kOut) * kOfiFrameBytes + extra_bytes);
  for (uint32_t i = 0; i < kIn; ++i) {
    in_[i].owner = OfiContext::Owner::kFrameIn;
    in_[i].index = i;
  }
  for (uint32_t i = 0; i < kOut; ++i) {
    out_[i].context.owner = OfiContext::Owner::kFrameOut;
    out_[i].context.index = i;
  }
  if (!device->needs_descriptors()) return absl::OkStatus();
  auto region = OfiRegion::Register(device, memory_.data(), memory_.size(), kLocalWrite);
  if (!region.ok()) return region.status();
  region_ = *std::move(region);
  const Entry all = {region_->address(), region_->bytes(), region_->local_key()};
  TRYST_CHECK(device->regions()->Find(all, /*to_write=*/true, &descriptor_));
  return absl::OkStatus();
}

OfiFrames::Out* OfiFrames::Free() {
  Out* const free =
      std::find_if(std::begin(out_), std::end(out_), [](const Out& out) { return !out.busy; });
  return free == std::end(out_) ? nullptr : free;
}

bool OfiFrames::AnyBusy() const {
  return std::any_of(std::begin(out_), std::end(out_), [](const Out& out) { return out.busy; });
}

}  // namespace tryst
