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

// The rights of verbs for ours (nic.h, Access). Relaxed ordering is left out where the
// library cannot pass it.
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

// Belongs to the thread of the queue pair that it is bound on. That frees it when it is
// destroyed itself: Soft-RoCE waits 50 s for a window that is still bound.
class IbvWindow final : public Window {
 public:
  static absl::StatusOr<std::unique_ptr<Window>> Create(IbvDevice* device);
  ~IbvWindow() override;

  uint32_t remote_key() const override { return key_; }
  ibv_mw* verbs() const { return window_; }

  // Makes it ready for a bind on `pair`: there may be none in the hardware now.
  absl::Status Prepare(IbvQueuePair* pair);
  // Moves on to the key that the next bind gives. The driver must find the one before
  // in the window until that bind has been posted; then OnPosted().
  uint32_t TakeNextKey() { return key_ = ibv_inc_rkey(key_); }
  void OnPosted(uint32_t key) { window_->rkey = key; }
  // Its key opens nothing any more.
  void Free();

 private:
  explicit IbvWindow(IbvDevice* device) : device_(device) {}
  absl::Status Allocate();

  IbvDevice* const device_;
  ibv_mw* window_ = nullptr;
  IbvQueuePair* pair_ = nullptr;  // That it was last bound on.
  uint32_t key_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_IBV_REGION_H_
