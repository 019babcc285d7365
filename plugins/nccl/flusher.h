#ifndef TRYST_PLUGINS_NCCL_FLUSHER_H_
#define TRYST_PLUGINS_NCCL_FLUSHER_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbs/nic.h"

namespace tryst::nccl {

// Two queue pairs of one NIC, connected to each other. A READ of memory that peers have written
// follows the same path as their writes, so it returns only after a GPU can see them. Used by one
// thread.
class Flusher {
 public:
  static absl::StatusOr<std::unique_ptr<Flusher>> Make(Nic* nic);

  // Starts to read one byte at `address`. kResourceExhausted: too many reads are under way.
  absl::Status Start(uint64_t address, uint32_t key);
  uint64_t started() const { return started_; }
  // Polls the NIC and returns how many reads have ended.
  absl::StatusOr<uint64_t> Ended();

 private:
  Flusher() = default;

  std::array<uint8_t, 64> landing_ = {};
  std::unique_ptr<Region> region_;
  std::unique_ptr<CompletionQueue> completions_;
  std::array<std::unique_ptr<QueuePair>, 2> pairs_;
  uint64_t started_ = 0;
  uint64_t ended_ = 0;
};

}  // namespace tryst::nccl

#endif  // TRYST_PLUGINS_NCCL_FLUSHER_H_
