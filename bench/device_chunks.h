#ifndef TRYST_BENCH_DEVICE_CHUNKS_H_
#define TRYST_BENCH_DEVICE_CHUNKS_H_

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/device_pair.h"
#include "gpu/pinned_memory.h"
#include "tests/doubles/cuda/expandable_range.h"

namespace tryst {

// Moves tensors in memory that is mapped chunk by chunk between two processes. It checks every byte
// of tensors that span chunks, and begin and end inside chunks, while the range grows, shrinks and
// is filled anew. It measures the cost of the first mapping, and the bandwidth afterwards.
class DeviceChunks {
 public:
  struct Parts {
    DeviceEnd* end = nullptr;
    int rank = 0;  // 1: the producer.
    const Gpu* gpu = nullptr;
    cuda::Stream stream = nullptr;
    bool quick = false;
    std::function<void()> meet;
    std::function<void(const std::string& figure, uint64_t bytes, double value, const char* unit)>
        print;
  };
  explicit DeviceChunks(Parts parts) : parts_(std::move(parts)) {}

  void Rounds();                     // Checks every byte.
  void First(uint64_t chunk_bytes);  // Compares the first pull with the next one.
  void Bandwidth(uint64_t chunk_bytes);

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Tensor TensorAt(const ExpandableRange& range, const Place& place) const;
  void Send(const std::string& edge, int number, const Tensor& tensor);
  // Returns how many nanoseconds it took.
  int64_t Fetch(const std::string& edge, int number, const Tensor& into);
  void Copy(cuda::Address to, cuda::Address from, uint64_t bytes);
  void WaitUntilTaken();

  const Parts parts_;
};

}  // namespace tryst

#endif  // TRYST_BENCH_DEVICE_CHUNKS_H_
