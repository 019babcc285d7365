#ifndef TRYST_CHANNEL_OPS_TOLD_KEYS_H_
#define TRYST_CHANNEL_OPS_TOLD_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/ops/run_wire.h"
#include "rendezvous/tensor_key.h"

namespace tryst {

struct ToldKey {
  TensorKey key;
  size_t bytes = 0;  // For how much it counts.
  // The key is addressed to this consumer, which the hello has authenticated.
  bool for_consumer = false;
  bool may_take = false;  // See TensorSource::MayTake().
  // Not null: it stands for the keys with these numbers, and `key` equals the first of them.
  std::unique_ptr<const std::vector<uint32_t>> run;
};

// The keys that a consumer has told its producer, by the consumer's numbers. It is the counterpart
// of FetchKeys, which tells the keys that it uses, in any order.
class ToldKeys {
 public:
  // The bounds: `most` keys, `most_key_bytes` for each text, and `most_bytes` in all.
  ToldKeys(std::string consumer, uint32_t most, size_t most_key_bytes, uint64_t most_bytes)
      : consumer_(std::move(consumer)),
        most_(most),
        most_key_bytes_(most_key_bytes),
        most_bytes_(most_bytes) {}

  // kDataLoss: an honest consumer never says this.
  absl::Status Tell(uint32_t number, absl::string_view text) {
    if (number >= most_ || text.empty() || text.size() > most_key_bytes_) {
      return absl::DataLossError(
          "the consumer broke the protocol: a key that it names has a number out of range, or is "
          "empty or too long");
    }
    auto key = TensorKey::Parse(text);
    if (!key.ok()) return absl::DataLossError(key.status().message());
    return Keep(number, *std::move(key), text.size());
  }
  // The consumer tells a run of keys that it has told before.
  absl::Status TellRun(uint32_t number, absl::string_view text) {
    auto run = DecodeRun(text);
    if (!run.ok()) return run.status();
    for (uint32_t one : *run) {
      const ToldKey* const key = Find(one);
      if (key == nullptr || key->run != nullptr || one == number) {
        return absl::DataLossError(
            "the consumer broke the protocol: a run has a key that it never named");
      }
    }
    if (number >= most_) {
      return absl::DataLossError(
          "the consumer broke the protocol: a run that it names has a number out of range");
    }
    // The text is the first key's, and counts there.
    const absl::Status told = Keep(number, Find(run->front())->key, text.size());
    if (told.ok()) keys_[number].run = std::make_unique<std::vector<uint32_t>>(*std::move(run));
    return told;
  }
  size_t size() const { return keys_.size(); }
  // Forgets all keys; the consumer tells them again.
  void clear() {
    keys_.clear();
    bytes_ = 0;
  }
  // Null: no key was told under that number.
  ToldKey* Find(uint32_t number) {
    return number < keys_.size() && !keys_[number].key.empty() ? &keys_[number] : nullptr;
  }

 private:
  absl::Status Keep(uint32_t number, TensorKey key, size_t bytes) {
    if (number >= keys_.size()) keys_.resize(number + 1);
    bytes_ += bytes - keys_[number].bytes;
    if (bytes_ > most_bytes_) {
      return absl::DataLossError(
          "the consumer broke the protocol: it names more keys than are remembered");
    }
    const bool for_consumer = key.IsTo(consumer_);
    keys_[number] = {std::move(key), bytes, for_consumer, /*may_take=*/false, nullptr};
    return absl::OkStatus();
  }

  const std::string consumer_;
  const uint32_t most_;
  const size_t most_key_bytes_;
  const uint64_t most_bytes_;
  std::vector<ToldKey> keys_;
  uint64_t bytes_ = 0;  // What all of them count for.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_TOLD_KEYS_H_
