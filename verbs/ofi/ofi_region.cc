#include "verbs/ofi/ofi_region.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

uint64_t ProviderAccess(uint32_t access) {
  uint64_t flags = FI_SEND | FI_WRITE;  // Local reading is always allowed.
  if ((access & (kLocalWrite | kRemoteWrite)) != 0) flags |= FI_RECV | FI_READ;
  if ((access & kRemoteWrite) != 0) flags |= FI_REMOTE_WRITE;
  if ((access & kRemoteRead) != 0) flags |= FI_REMOTE_READ;
  return flags;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> OfiRegion::Register(OfiDevice* device, void* address,
                                                            uint64_t bytes, uint32_t access) {
  const uint64_t first = reinterpret_cast<uint64_t>(address);
  if (address == nullptr || bytes == 0 || first > std::numeric_limits<uint64_t>::max() - bytes) {
    return absl::InvalidArgumentError(
        "the memory to register is null, empty, or reaches beyond the end of the address space");
  }
  std::unique_ptr<OfiRegion> region(new OfiRegion(device, first, bytes));
  const absl::Status registered =
      OfiStatus(device->calls(),
                fi_mr_reg(device->domain(), address, bytes, ProviderAccess(access), 0,
                          /*requested_key=*/device->NextNumber(), 0, &region->region_, nullptr),
                absl::StrCat("libfabric registers no ", bytes, " bytes"));
  if (!registered.ok()) return registered;
  const uint64_t key = fi_mr_key(region->region_);
  if (key > std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat(
        "libfabric's provider ", device->provider().full_name,
        " gave a memory key of more than 4 bytes, and messages have room for 4: use another "
        "provider, or nic=soft"));
  }
  region->remote_key_ = static_cast<uint32_t>(key);
  absl::StatusOr<uint32_t> local =
      device->regions()->Add(first, bytes, access, fi_mr_desc(region->region_));
  if (!local.ok()) return local.status();
  region->local_key_ = *local;
  return std::unique_ptr<Region>(std::move(region));
}

OfiRegion::~OfiRegion() {
  if (local_key_ != 0) device_->regions()->Remove(local_key_);
  if (region_ == nullptr) return;
  const int closed = fi_close(&region_->fid);
  if (closed != 0) {
    TRYST_LOG(Error) << "a memory region of " << bytes_
                     << " bytes stays registered until the process ends: "
                     << device_->calls().error_text(-closed);
  }
}

}  // namespace tryst
