#ifndef TRYST_PLUGINS_TENSORFLOW_COUNTS_H_
#define TRYST_PLUGINS_TENSORFLOW_COUNTS_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace tryst_tensorflow {

// Why a tensor travelled by TensorFlow's gRPC.
enum class Why {
  kNoPlugin,   // The producer has no plug-in.
  kNotYet,     // The two workers have not met yet.
  kNotBytes,   // It holds strings, variants or resources, or lies in a device's memory.
  kOurMemory,  // Its destination here is a device's memory.
  kKey,        // Its name is too long, or malformed.
};
inline constexpr int kWhys = 5;

inline const char* Text(Why why) {
  static constexpr const char* kTexts[kWhys] = {
      "the producer has no plug-in", "before the two had met", "not plain bytes in host memory",
      "to a device's memory", "a key that Tryst cannot say"};
  return kTexts[static_cast<int>(why)];
}

// What was received from, or sent to, one worker.
struct Counts {
  std::atomic<int64_t> tensors{0};  // Those that travelled by Tryst.
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> dead{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> copied{0};  // Those that had to be copied from where they landed.
  std::array<std::atomic<int64_t>, kWhys> by_grpc = {};
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_COUNTS_H_
