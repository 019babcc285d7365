#ifndef TRYST_PLUGINS_TENSORFLOW_KEYS_H_
#define TRYST_PLUGINS_TENSORFLOW_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "plugins/tensorflow/library.h"
#include "plugins/tensorflow/worker.h"

namespace tryst_tensorflow {

// Tryst's key for a tensor of TensorFlow: with the same edge, frame and iteration, but the
// incarnation of Tryst's producer. Empty: `tensorflow_key` is malformed.
std::string TrystKey(const Library& library, std::string_view tensorflow_key, const Peer& producer,
                     const std::string& consumer);

// The key of the `n`th batch of requests.
std::string AskKey(const Library& library, const Peer& consumer, const std::string& producer,
                   uint64_t n);

// The step of Tryst in which a link uses a lane. The consumer chooses the link's number.
inline int64_t StepOfLane(uint32_t link, uint32_t lane) {
  return static_cast<int64_t>(static_cast<uint64_t>(link) << 32 | lane);
}
inline constexpr uint32_t kAskLane = 0xffffffff;

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_KEYS_H_
