#ifndef TRYST_VERBS_OFI_OFI_DEVICE_H_
#define TRYST_VERBS_OFI_OFI_DEVICE_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_calls.h"
#include "verbs/ofi/ofi_provider.h"
#include "verbs/ofi/ofi_region_table.h"

namespace tryst {

// An open provider and its domain: what everything made from one OfiNic shares. Constant after
// Open() except for the tables. Thread-safe.
class OfiDevice {
 public:
  // `host` is our numeric address to listen on, for providers that take one.
  static absl::StatusOr<std::unique_ptr<OfiDevice>> Open(OfiCalls calls,
                                                         const OfiProvider& provider,
                                                         const std::string& host);
  ~OfiDevice();  // REQUIRES: nothing made from it is left.
  OfiDevice(const OfiDevice&) = delete;
  OfiDevice& operator=(const OfiDevice&) = delete;

  const OfiCalls& calls() const { return calls_; }
  const OfiProvider& provider() const { return provider_; }
  const NicLimits& limits() const { return limits_; }
  fi_info* info() const { return info_; }
  fid_fabric* fabric() const { return fabric_; }
  fid_domain* domain() const { return domain_; }
  OfiRegionTable* regions() { return &regions_; }
  uint32_t NextNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }
  // Something made from it stays with the library, so the domain must stay, too.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }
  // Whether completion queues have a descriptor to sleep on.
  bool wakes() const { return wakes_; }
  // Whether an immediate has room for the length of what landed with it.
  bool tells_length() const { return info_->domain_attr->cq_data_size >= 8; }
  // Whether memory that the provider sends from must be registered.
  bool needs_descriptors() const { return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0; }

 private:
  OfiDevice(OfiCalls calls, const OfiProvider& provider)
      : calls_(std::move(calls)), provider_(provider) {}
  absl::Status FindInfo(const std::string& host);
  absl::Status AskFor(const std::string& host, int mr_mode, uint64_t order);
  void FillLimits();
  bool ProbeWakes() const;

  const OfiCalls calls_;
  const OfiProvider provider_;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  NicLimits limits_;
  bool wakes_ = false;
  OfiRegionTable regions_;
  std::atomic<uint32_t> next_number_{1};
  std::atomic<bool> abandoned_{false};
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_DEVICE_H_
