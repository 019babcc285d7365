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
  ibv_mr* verbs() const { return region_; }

 private:
  IbvRegion(IbvDevice* device, ibv_mr* region, uint64_t address, uint64_t bytes);

  IbvDevice* const device_;
  ibv_mr* const region_;
  const uint64_t address_;
  const uint64_t bytes_;
};

class IbvQueuePair;

// Belongs to the thread of the queue pair on which it is bound. That queue pair frees it when it is
// destroyed, because Soft-RoCE waits 50 s for a window that is still bound.
class IbvWindow final : public Window {
 public:
  static absl::StatusOr<std::unique_ptr<Window>> Create(IbvDevice* device);
  ~IbvWindow() override;

  uint32_t remote_key() const override { return key_; }
  ibv_mw* verbs() const { return window_; }

  // Makes it ready for a bind on `pair`: the hardware may have no window for it now.
  absl::Status Prepare(IbvQueuePair* pair);
  // Moves on to the key that the next bind gives. Until that bind has been posted the driver must
  // find the old key in the window; then call OnPosted().
  uint32_t TakeNextKey() { return key_ = ibv_inc_rkey(key_); }
  void OnPosted(uint32_t key) { window_->rkey = key; }
  // Its key opens nothing any more.
  void Free();

 private:
  explicit IbvWindow(IbvDevice* device) : device_(device) {}
  absl::Status Allocate();

  IbvDevice* const device_;
  ibv_mw* window_ = nullptr;
  IbvQueuePair* pair_ = nullptr;  // The queue pair on which it was last bound.
  uint32_t key_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_REGION_H_
