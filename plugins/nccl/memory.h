#ifndef TRYST_PLUGINS_NCCL_MEMORY_H_
#define TRYST_PLUGINS_NCCL_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/nccl/devices.h"
#include "verbs/nic.h"
#include "verbs/registration_cache.h"

namespace tryst::nccl {

// Memory that NCCL has registered, with the keys of each rail.
class RegisteredMemory {
 public:
  // Registers host memory; or device memory by its address, where a kernel module finds its owner.
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(const std::vector<Rail*>& rails,
                                                                    void* data, uint64_t bytes,
                                                                    bool on_device);
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisterDmaBuf(
      const std::vector<Rail*>& rails, void* data, uint64_t bytes, uint64_t offset, int fd);
  ~RegisteredMemory();

  bool on_device() const { return on_device_; }
  bool Covers(const void* data, uint64_t bytes) const {
    const uint64_t begin = reinterpret_cast<uint64_t>(data);
    return begin >= begin_ && bytes <= end_ - begin_ && begin - begin_ <= end_ - begin_ - bytes;
  }
  size_t rails() const { return regions_.size(); }
  uint32_t local_key(size_t rail) const { return regions_[rail]->local_key(); }
  uint32_t remote_key(size_t rail) const { return regions_[rail]->remote_key(); }

 private:
  RegisteredMemory(const void* data, uint64_t bytes, bool on_device);

  const uint64_t begin_;
  const uint64_t end_;
  const bool on_device_;
  std::vector<Region*> regions_;  // One for each rail.
  std::vector<Registration> cached_;
  std::vector<RegistrationCache*> caches_;
  std::vector<std::unique_ptr<Region>> own_;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_MEMORY_H_
