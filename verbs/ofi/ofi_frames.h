#ifndef TRYST_VERBS_OFI_OFI_FRAMES_H_
#define TRYST_VERBS_OFI_OFI_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "verbs/nic.h"
#include "verbs/ofi/ofi_device.h"
#include "verbs/ofi/ofi_endpoint.h"
#include "verbs/ofi/ofi_frame.h"

namespace tryst {

// The memory of one queue pair that its endpoint sends from and receives into: frames in, frames
// out, and behind them what else the queue pair keeps. One thread.
class OfiFrames {
 public:
  static constexpr uint32_t kIn = 8;
  static constexpr uint32_t kOut = 4;
  static constexpr uint64_t kNoWork = ~uint64_t{0};

  struct Out {
    OfiContext context;
    bool busy = false;
    uint64_t work = kNoWork;  // What it carries a part of.
  };

  // Opens the frames, with `extra_bytes` of memory behind them.
  absl::Status Open(OfiDevice* device, size_t extra_bytes);
  uint8_t* extra() { return memory_.data() + (kIn + kOut) * kOfiFrameBytes; }
  void* descriptor() const { return descriptor_; }

  uint8_t* In(uint32_t index) { return &memory_[index * kOfiFrameBytes]; }
  int64_t Receive(OfiEndpoint* endpoint, uint32_t index) {
    return endpoint->Receive(In(index), kOfiFrameBytes, descriptor_, &in_[index]);
  }

  // One that is not busy; null when all are.
  Out* Free();
  Out& OutAt(uint32_t index) { return out_[index]; }
  bool AnyBusy() const;
  uint8_t* BytesOf(const Out& out) { return &memory_[(kIn + out.context.index) * kOfiFrameBytes]; }

 private:
  std::vector<uint8_t> memory_;
  std::unique_ptr<Region> region_;  // Over it, where providers want one.
  void* descriptor_ = nullptr;
  OfiContext in_[kIn];
  Out out_[kOut];
};

}  // namespace tryst

#endif  // TRYST_VERBS_OFI_OFI_FRAMES_H_
