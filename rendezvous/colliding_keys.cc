#include "rendezvous/colliding_keys.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace tryst {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

std::vector<TensorKey> CollidingKeys(int count) {
  const TensorKeyPrefix prefix = *TensorKeyPrefix::Make(
      "/job:ps/replica:0/task:0/device:CPU:0", 1, "/job:worker/replica:0/task:0/device:CPU:0", "e");
  const TensorKey zero = prefix.At(0, 0);
  absl::string_view text = zero.text();
  text.remove_suffix(strlen("0:0"));
  uint64_t hash = text.size();
  for (; !text.empty(); text.remove_prefix(std::min<size_t>(8, text.size()))) {
    uint64_t word = 0;
    memcpy(&word, text.data(), std::min<size_t>(8, text.size()));
    hash = Mix(hash ^ word ^ 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93);
  }
  const auto inner = [&](uint64_t frame) { return Mix(hash ^ frame, 0x9e3779b97f4a7c15); };
  std::vector<TensorKey> keys;
  for (int i = 0; i < count; ++i) {
    const auto frame = static_cast<uint64_t>(i);
    keys.push_back(prefix.At(frame, inner(frame) ^ inner(0)));  // The iteration undoes the frame.
  }
  return keys;
}

}  // namespace tryst
