#ifndef TRYST_PLUGINS_TENSORFLOW_ASKS_H_
#define TRYST_PLUGINS_TENSORFLOW_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tryst_tensorflow {

// One statement of a consumer to a producer. Many travel in one tensor of bytes.
struct Ask {
  enum Kind : uint8_t {
    kTensor = 1,     // "Send me key `id` of `step` by lane `lane`."
    kNewTensor = 2,  // As kTensor; from now on `id` stands for `key`.
    kCancel = 3,     // "I no longer wait in `step`."
    kForget = 4,     // "No id stands for any key any more."
  };
  Kind kind = kTensor;
  uint32_t id = 0;
  int64_t step = 0;
  uint32_t lane = 0;
  std::string_view key;  // TensorFlow's complete key.
};

// How many keys of a consumer may have ids at the same time.
inline constexpr uint32_t kMaxKeys = 32768;
// How many fetches of one key may be under way at the same time.
inline constexpr uint32_t kMaxLanes = 1 << 20;

void AppendAsk(const Ask& ask, std::string* batch);
// The keys point into `batch`. False: the batch is malformed, and all of it must be ignored.
bool ReadAsks(std::string_view batch, std::vector<Ask>* asks);

// What a producer sends instead of a tensor: uint8 values, in a shape that no tensor of TensorFlow
// is sent in.
struct Answer {
  enum Kind : uint8_t {
    kByGrpc = 1,  // "It waits for TensorFlow's RecvTensor."
    kFailed = 2,  // Carries TensorFlow's status.
  };
  Kind kind = kByGrpc;
  int32_t code = 0;
  std::string message;
};

inline constexpr int kAnswerRank = 8;  // [1, 1, 1, 1, 1, 1, 1, n]

std::string WriteAnswer(const Answer& answer);
bool ReadAnswer(std::string_view bytes, Answer* answer);

}  // namespace tryst_tensorflow

#endif  // TRYST_PLUGINS_TENSORFLOW_ASKS_H_
