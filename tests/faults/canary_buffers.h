#ifndef TRYST_TESTS_FAULTS_CANARY_BUFFERS_H_
#define TRYST_TESTS_FAULTS_CANARY_BUFFERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rendezvous/tensor.h"

namespace tryst {

// Destinations for receives, used again as soon as they are given back, the last one
// first. What nobody may write holds canaries, which are looked at before it is used
// again: a late byte is found, whether it hits a buffer at rest or the next tenant's.
class CanaryBuffers {
 public:
  // Told when memory comes to rest and when it is used again. May be empty.
  struct Watch {
    std::function<void(const void* address, uint64_t bytes)> rest;
    std::function<void(const void* address, uint64_t bytes)> use;
  };
  explicit CanaryBuffers(Watch watch = {}) : watch_(std::move(watch)) {}

  // A tensor of uint64 whose elements are all kFresh.
  Tensor Take(uint64_t elements);
  // REQUIRES: it came from Take(), and nobody uses it any more.
  void Give(Tensor tensor);
  // Looks at all that rest. Called once more at the end, it finds what came after the last use.
  void CheckAll();
  uint64_t late_words() const { return late_words_; }  // Changed since they were given back.
  uint64_t reused() const { return reused_; }

  static constexpr uint64_t kFresh = 0xcdcdcdcdcdcdcdcd;
  static constexpr uint64_t kCanary = 0xabababababababab;

 private:
  struct Block {
    StorageRef storage;
    uint64_t used_bytes = 0;  // By the last tenant.
  };
  static size_t ClassOf(uint64_t bytes);
  void Check(const Block& block);

  const Watch watch_;
  std::vector<std::vector<Block>> resting_;  // By class: sizes 2^(12 + class).
  uint64_t late_words_ = 0;
  uint64_t reused_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_FAULTS_CANARY_BUFFERS_H_
