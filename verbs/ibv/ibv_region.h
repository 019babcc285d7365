#ifndef TRYST_VERBS_IBV_IBV_REGION_H_
#define TRYST_VERBS_IBV_IBV_REGION_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbs/ibv/ibv_device.h"
#include "verbs/nic.h"

namespace tryst {

// The verbs rights for ours (verbs/nic.h, Access). Relaxed ordering is left out if the library
// cannot pass it on.
unsigned VerbsAccess(uint32_t access, const NicLimits& limits);

class IbvRegion final : public Region {
 public:
  static absl::StatusOr<std::unique_ptr<Region>> Register(IbvDevice* device, void* address,
                                                          uint64_t bytes, uint32_t access);
  static absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(IbvDevice* device, int fd,
                                                                uint64_t offset, uint64_t bytes,
                                                                uint64_t remote_base,
                                                                uint32_t access);
  ~IbvRegion() override;

  uint64_t address() const override { return address_; }
  uint64_t bytes() const override { return bytes_; }
  uint32_t local_key() const override { return region_->lkey; }
  uint32_t remote_key() const override { return region_->rkey; }

 private:
  IbvRegion(IbvDevice* device, ibv_mr* region, uint64_t address, uint64_t bytes);

  IbvDevice* const device_;
  ibv_mr* const region_;
  const uint64_t address_;
  const uint64_t bytes_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_REGION_H_
