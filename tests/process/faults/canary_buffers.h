#ifndef TRYST_TESTS_PROCESS_FAULTS_CANARY_BUFFERS_H_
#define TRYST_TESTS_PROCESS_FAULTS_CANARY_BUFFERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rendezvous/tensor.h"

namespace tryst {

// Destinations for receives, reused as soon as they are given back, the last one first. Memory that
// nobody may write holds canaries, which are checked before it is used again. So a late byte is
// found, whether it hits a free buffer or the next user's.
class CanaryBuffers {
 public:
  // Called when memory becomes free, and when it is used again. May be empty.
  struct Watch {
    std::function<void(const void* address, uint64_t bytes)> rest;
    std::function<void(const void* address, uint64_t bytes)> use;
  };
  explicit CanaryBuffers(Watch watch = {}) : watch_(std::move(watch)) {}

  // A tensor of uint64 whose elements are all kFresh.
  Tensor Take(uint64_t elements);
  // REQUIRES: the tensor came from Take(), and nothing uses it any more.
  void Give(Tensor tensor);
  // Checks all free buffers. A last call at the end finds what came after their last use.
  void CheckAll();
  // Words that changed after their buffer was given back.
  uint64_t late_words() const { return late_words_; }
  uint64_t reused() const { return reused_; }

  static constexpr uint64_t kFresh = 0xcdcdcdcdcdcdcdcd;
  static constexpr uint64_t kCanary = 0xabababababababab;

 private:
  struct Block {
    StorageRef storage;
    uint64_t used_bytes = 0;  // How much the last user had.
  };
  static size_t ClassOf(uint64_t bytes);
  void Check(const Block& block);

  const Watch watch_;
  std::vector<std::vector<Block>> resting_;  // By class: sizes 2^(12 + class).
  uint64_t late_words_ = 0;
  uint64_t reused_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_FAULTS_CANARY_BUFFERS_H_
