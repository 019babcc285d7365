#ifndef TRYST_PLUGINS_TENSORFLOW_KEYS_H_
#define TRYST_PLUGINS_TENSORFLOW_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "plugins/tensorflow/library.h"
#include "plugins/tensorflow/worker.h"

namespace tryst_tensorflow {

// What Tryst calls the tensor of TensorFlow's key: by the same edge, frame and iteration, but with
// the incarnation of Tryst's producer. Empty: that is no key.
std::string TrystKey(const Library& library, std::string_view tensorflow_key, const Peer& producer,
                     const std::string& consumer);

// Of the `n`th batch of asks.
std::string AskKey(const Library& library, const Peer& consumer, const std::string& producer,
                   uint64_t n);

// In which step of Tryst's a link sends by a lane; the link's number is the consumer's.
inline int64_t StepOfLane(uint32_t link, uint32_t lane) {
  return static_cast<int64_t>(static_cast<uint64_t>(link) << 32 | lane);
}
inline constexpr uint32_t kAskLane = 0xffffffff;

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_KEYS_H_
