#ifndef TRYST_TESTS_CONTRACT_DMA_BUF_NIC_H_
#define TRYST_TESTS_CONTRACT_DMA_BUF_NIC_H_

#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbs/nic.h"

namespace tryst {

// A software NIC that registers the pretend GPU's dma-bufs, which are files whose position
// says where in the GPU's memory they begin: it moves bytes in and out of what no host
// access reaches.
class DmaBufNic final : public Nic {
 public:
  explicit DmaBufNic(std::unique_ptr<Nic> nic) : nic_(std::move(nic)), limits_(nic_->limits()) {
    limits_.dma_buf = true;
  }

  std::string name() const override { return nic_->name(); }
  const NicLimits& limits() const override { return limits_; }
  std::vector<NicPort> Ports() const override { return nic_->Ports(); }
  absl::StatusOr<std::unique_ptr<Region>> RegisterRegion(void* address, uint64_t bytes,
                                                         uint32_t access) override {
    return nic_->RegisterRegion(address, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<Region>> RegisterDmaBuf(int fd, uint64_t offset, uint64_t bytes,
                                                         uint64_t, uint32_t access) override {
    const uint64_t begin = static_cast<uint64_t>(lseek(fd, 0, SEEK_CUR)) + offset;
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t skip = begin % page;
    void* mapped = mmap(nullptr, bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(begin - skip));
    if (mapped == MAP_FAILED) return absl::InternalError("this dma-buf cannot be mapped");
    auto region = nic_->RegisterRegion(static_cast<char*>(mapped) + skip, bytes, access);
    if (!region.ok()) {
      munmap(mapped, bytes + skip);
      return region.status();
    }
    return std::unique_ptr<Region>(new Mapped(*std::move(region), mapped, bytes + skip));
  }
  absl::StatusOr<std::unique_ptr<Window>> CreateWindow() override { return nic_->CreateWindow(); }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t depth) override {
    return nic_->CreateCompletionQueue(depth);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    return nic_->CreateQueuePair(options);
  }
  absl::optional<NicEvent> NextEvent() override { return nic_->NextEvent(); }
  int event_fd() const override { return nic_->event_fd(); }

 private:
  class Mapped final : public Region {
   public:
    Mapped(std::unique_ptr<Region> region, void* mapped, uint64_t mapped_bytes)
        : region_(std::move(region)), mapped_(mapped), mapped_bytes_(mapped_bytes) {}
    ~Mapped() override {
      region_.reset();
      munmap(mapped_, mapped_bytes_);
    }
    uint64_t address() const override { return region_->address(); }
    uint64_t bytes() const override { return region_->bytes(); }
    uint32_t local_key() const override { return region_->local_key(); }
    uint32_t remote_key() const override { return region_->remote_key(); }

   private:
    std::unique_ptr<Region> region_;
    void* const mapped_;
    const uint64_t mapped_bytes_;
  };

  const std::unique_ptr<Nic> nic_;
  NicLimits limits_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_CONTRACT_DMA_BUF_NIC_H_
