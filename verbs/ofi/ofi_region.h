#ifndef TRYST_VERBS_OFI_OFI_REGION_H_
#define TRYST_VERBS_OFI_OFI_REGION_H_

#include <rdma/fi_domain.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_device.h"

namespace tryst {

// A software provider completes a write that it has begun, even after the region was deregistered.
// So break the queue pair that carries a peer's write before you deregister its region.
class OfiRegion final : public Region {
 public:
  static absl::StatusOr<std::unique_ptr<Region>> Register(OfiDevice* device, void* address,
                                                          uint64_t bytes, uint32_t access);
  ~OfiRegion() override;

  uint64_t address() const override { return address_; }
  uint64_t bytes() const override { return bytes_; }
  uint32_t local_key() const override { return local_key_; }
  uint32_t remote_key() const override { return remote_key_; }

 private:
  OfiRegion(OfiDevice* device, uint64_t address, uint64_t bytes)
      : device_(device), address_(address), bytes_(bytes) {}

  OfiDevice* const device_;
  const uint64_t address_;
  const uint64_t bytes_;
  fid_mr* region_ = nullptr;
  uint32_t local_key_ = 0;
  uint32_t remote_key_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_REGION_H_
