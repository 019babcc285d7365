#ifndef TRYST_PLUGINS_TENSORFLOW_ASKS_H_
#define TRYST_PLUGINS_TENSORFLOW_ASKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tryst_tensorflow {

// What a consumer tells a producer, many at a time in one tensor of bytes.
struct Ask {
  enum Kind : uint8_t {
    kTensor = 1,     // "Send me key `id` of `step` by lane `lane`."
    kNewTensor = 2,  // The same; from now on `id` stands for `key`.
    kCancel = 3,     // "I no longer wait in `step`."
    kForget = 4,     // "No id stands for any key any more."
  };
  Kind kind = kTensor;
  uint32_t id = 0;
  int64_t step = 0;
  uint32_t lane = 0;
  std::string_view key;  // TensorFlow's whole key.
};

// Ids that a consumer may have given to keys at once.
inline constexpr uint32_t kMaxKeys = 32768;
// Fetches of one key that are out at once.
inline constexpr uint32_t kMaxLanes = 1 << 20;

void AppendAsk(const Ask& ask, std::string* batch);
// The keys are views into `batch`. False when it is none: nothing of it is to be heeded.
bool ReadAsks(std::string_view batch, std::vector<Ask>* asks);

// What a producer sends in a tensor's place: uint8 in a shape that no tensor of TensorFlow's is
// sent in.
struct Answer {
  enum Kind : uint8_t {
    kByGrpc = 1,  // "It waits for TensorFlow's RecvTensor."
    kFailed = 2,  // With TensorFlow's status.
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
