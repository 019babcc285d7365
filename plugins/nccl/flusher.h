#ifndef TRYST_PLUGINS_NCCL_FLUSHER_H_
#define TRYST_PLUGINS_NCCL_FLUSHER_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbs/nic.h"

namespace tryst::nccl {

// Two queue pairs of one NIC, joined: a READ from memory that peers have written comes back
// only when their writes are where a GPU sees them, because it takes the same way. One
// thread.
class Flusher {
 public:
  static absl::StatusOr<std::unique_ptr<Flusher>> Make(Nic* nic);

  // Reads one byte at `address`. kResourceExhausted when too many are under way.
  absl::Status Start(uint64_t address, uint32_t key);
  uint64_t started() const { return started_; }
  // How many have ended, after a look at the NIC.
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
