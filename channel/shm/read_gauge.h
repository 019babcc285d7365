#ifndef TRYST_CHANNEL_SHM_READ_GAUGE_H_
#define TRYST_CHANNEL_SHM_READ_GAUGE_H_

#include <algorithm>
#include <cstdint>

namespace tryst {

// Decides how tensors of one class of sizes get into a consumer's own memory: in parts, which both
// sides copy, or read by the consumer and its helpers through the kernel. Which one is faster
// depends on the processor, its idle cores, its memory and its kernel, so both are tried and
// measured: by the bytes that were accepted in the time in which any were under way. Needs external
// synchronisation.
class ReadGauge {
 public:
  enum class Mode : uint8_t { kParts, kRead };
  // One tensor on its way.
  struct Trip {
    uint32_t epoch = 0;  // 0: none.
  };
  static constexpr uint64_t kMeasureBytes = 32 << 20;
  // This suffices for small tensors: far fewer bytes are many of them.
  static constexpr uint64_t kMeasureSmallBytes = 8 << 20;
  static constexpr int kMeasureTensors = 2;
  static constexpr uint64_t kTryOften = uint64_t{512} << 20;
  static constexpr uint64_t kTrySeldom = uint64_t{32} << 30;

  // Each measurement takes `measure_bytes`, and so does each trial.
  explicit ReadGauge(Mode first, uint64_t measure_bytes = kMeasureBytes)
      : measure_bytes_(measure_bytes), chosen_(first) {}

  Mode Next() const { return trying_ ? Other() : chosen_; }
  Trip Begin(int64_t now_ns) {
    if (under_way_++ == 0 && of_before_ == 0) since_ns_ = now_ns;
    return {epoch_};
  }
  // `bytes`: 0 if it was not accepted.
  void End(Trip trip, uint64_t bytes, int64_t now_ns) {
    if (trip.epoch != epoch_) {
      if (--of_before_ == 0) since_ns_ = now_ns;
      return;
    }
    --under_way_;
    // What went the other way shares the time.
    if (of_before_ > 0) return;
    busy_ns_ += now_ns - since_ns_;
    since_ns_ = now_ns;
    bytes_ += bytes;
    tensors_ += bytes > 0 ? 1 : 0;
    if (tensors_ >= kMeasureTensors && bytes_ >= measure_bytes_) Measured();
  }

 private:
  Mode Other() const { return chosen_ == Mode::kParts ? Mode::kRead : Mode::kParts; }
  void Measured() {
    const double ns_per_byte = static_cast<double>(busy_ns_) / static_cast<double>(bytes_);
    if (trying_) {
      EndTrial(ns_per_byte < kFaster * chosen_ns_per_byte_);
    } else {
      chosen_ns_per_byte_ = ns_per_byte;
      passed_ += bytes_;
      if (passed_ >= try_after_) Switch(/*trying=*/true);
    }
    busy_ns_ = 0;
    bytes_ = 0;
    tensors_ = 0;
  }
  void EndTrial(bool better) {
    if (better) {
      chosen_ = Other();
      trying_ = false;  // It is what goes on.
      try_after_ = kTryOften;
    } else {
      Switch(/*trying=*/false);
      try_after_ = std::clamp(2 * try_after_, kTryOften, kTrySeldom);
    }
    passed_ = 0;
  }
  void Switch(bool trying) {
    trying_ = trying;
    ++epoch_;
    of_before_ += under_way_;
    under_way_ = 0;
  }

  // The other way must be that much faster, so that two of one speed do not take turns.
  static constexpr double kFaster = 0.9;

  const uint64_t measure_bytes_;
  Mode chosen_;
  bool trying_ = false;
  double chosen_ns_per_byte_ = 0;
  uint64_t try_after_ = 0;  // How many bytes pass between two trials; at first few.
  uint64_t passed_ = 0;
  uint32_t epoch_ = 1;  // Tensors that go the same path one after the other share an epoch.
  int under_way_ = 0;   // How many of this epoch are,
  int of_before_ = 0;   // and of those before.
  int64_t since_ns_ = 0;
  int64_t busy_ns_ = 0;
  uint64_t bytes_ = 0;
  int tensors_ = 0;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_READ_GAUGE_H_
