#ifndef TRYST_TESTS_CONTRACT_DMA_BUF_NIC_H_
#define TRYST_TESTS_CONTRACT_DMA_BUF_NIC_H_

#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "verbs/forwarding_nic.h"
#include "verbs/nic.h"

namespace tryst {

// A software NIC that can register the pretended GPU's dma-bufs. These are files; their position
// says where they begin in the GPU's memory. So the NIC moves bytes that the host cannot access.
class DmaBufNic final : public ForwardingNic {
 public:
  explicit DmaBufNic(std::unique_ptr<Nic> inner)
      : ForwardingNic(std::move(inner)), limits_(nic()->limits()) {
    limits_.dma_buf = true;
  }

  const NicLimits& limits() const override { return limits_; }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset, uint64_t bytes,
                                                         uint64_t, uint32_t access) override {
    const uint64_t begin = static_cast<uint64_t>(lseek(fd, 0, SEEK_CUR)) + offset;
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t skip = begin % page;
    void* mapped = mmap(nullptr, bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(begin - skip));
    if (mapped == MAP_FAILED) return absl::InternalError("this dma-buf cannot be mapped");
    auto region = nic()->RegisterRegion(static_cast<char*>(mapped) + skip, bytes, access);
    if (!region.ok()) {
      munmap(mapped, bytes + skip);
      return region.status();
    }
    auto made = std::make_unique<Mapped>(this, *std::move(region), mapped, bytes + skip);
    MutexLock lock(&mu_);
    if (access == kRemoteRead) only_read_.insert(made.get());
    return std::unique_ptr<Region>(std::move(made));
  }

  // What may only be read cannot be from now on: a flush reads it.
  void FailFlushes() {
    MutexLock lock(&mu_);
    for (Mapped* region : only_read_) region->Revoke();
  }

 private:
  class Mapped final : public ForwardingRegion {
   public:
    Mapped(DmaBufNic* nic, std::unique_ptr<Region> region, void* mapped, uint64_t mapped_bytes)
        : ForwardingRegion(std::move(region)),
          nic_(nic),
          address_(ForwardingRegion::address()),
          mapped_(mapped),
          mapped_bytes_(mapped_bytes) {}
    uint64_t address() const override { return address_; }
    uint32_t remote_key() const override {
      return former_key_ != 0 ? former_key_ : ForwardingRegion::remote_key();
    }
    ~Mapped() override {
      {
        MutexLock lock(&nic_->mu_);
        nic_->only_read_.erase(this);
      }
      Deregister();
      munmap(mapped_, mapped_bytes_);
    }
    // What it was is still told.
    void Revoke() {
      former_key_ = remote_key();
      Deregister();
    }

   private:
    DmaBufNic* const nic_;
    const uint64_t address_;
    uint32_t former_key_ = 0;  // 0: it is registered.
    void* const mapped_;
    const uint64_t mapped_bytes_;
  };

  NicLimits limits_;
  Mutex mu_;
  std::set<Mapped*> only_read_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_DMA_BUF_NIC_H_
