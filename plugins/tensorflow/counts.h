#ifndef TRYST_PLUGINS_TENSORFLOW_COUNTS_H_
#define TRYST_PLUGINS_TENSORFLOW_COUNTS_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace tryst_tensorflow {

// Why a tensor came by TensorFlow's gRPC.
enum class Why {
  kNoPlugin,   // The producer has none.
  kNotYet,     // The two have not met yet.
  kNotBytes,   // It is of strings, variants or resources, or in a device's memory.
  kOurMemory,  // It goes to a device's memory here.
  kKey,        // Its name is too long, or none.
};
inline constexpr int kWhys = 5;

inline const char* Text(Why why) {
  static constexpr const char* kTexts[kWhys] = {
      "the producer has no plug-in", "before the two had met", "not plain bytes in host memory",
      "to a device's memory", "a key that Tryst cannot say"};
  return kTexts[static_cast<int>(why)];
}

// Of what was received from one worker, or sent to one.
struct Counts {
  std::atomic<int64_t> tensors{0};  // By Tryst.
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> dead{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> copied{0};  // Tensors that were not used where they landed.
  std::array<std::atomic<int64_t>, kWhys> by_grpc = {};
};

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_COUNTS_H_
