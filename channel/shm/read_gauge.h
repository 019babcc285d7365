#ifndef TRYST_CHANNEL_SHM_READ_GAUGE_H_
#define TRYST_CHANNEL_SHM_READ_GAUGE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

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
  // What a lost trial cost is at most one part in so many of the time until the next one, but for
  // the first and for what is news.
  static constexpr double kTrialShare = 100;

  // Each measurement takes `measure_bytes`, and so does each trial.
  explicit ReadGauge(Mode first, uint64_t measure_bytes = kMeasureBytes)
      : measure_bytes_(measure_bytes), chosen_(first) {}

  Mode Next() const { return trying_ ? Other() : chosen_; }
  Mode chosen() const { return chosen_; }
  Trip Begin(int64_t now_ns) {
    if (under_way_++ == 0 && of_before_ == 0) since_ns_ = now_ns;
    return {epoch_};
  }
  // `bytes`: 0 if it was not accepted.
  void End(Trip trip, uint64_t bytes, int64_t now_ns) {
    // While tensors go both ways they share the time.
    if (of_before_ > 0) mixed_bytes_ += bytes;
    if (trip.epoch != epoch_) {
      if (--of_before_ == 0) {
        mixed_ns_ = now_ns - since_ns_;
        since_ns_ = now_ns;
      }
      return;
    }
    --under_way_;
    if (of_before_ > 0) return;
    busy_ns_ += now_ns - since_ns_;
    since_ns_ = now_ns;
    bytes_ += bytes;
    tensors_ += bytes > 0 ? 1 : 0;
    if (tensors_ >= kMeasureTensors && bytes_ >= measure_bytes_) Measured(now_ns);
  }
  // What came in a nanosecond when this way was measured last; 0: it was not.
  double BytesPerNs(Mode mode) const {
    const double ns = ns_per_byte_[static_cast<size_t>(mode)];
    return ns > 0 ? 1 / ns : 0;
  }

 private:
  Mode Other() const { return chosen_ == Mode::kParts ? Mode::kRead : Mode::kParts; }
  double& NsPerByte(Mode mode) { return ns_per_byte_[static_cast<size_t>(mode)]; }
  void Measured(int64_t now_ns) {
    // All that one turn accepts may take no time.
    const double ns = static_cast<double>(std::max<int64_t>(busy_ns_, 1));
    NsPerByte(Next()) = ns / static_cast<double>(bytes_);
    if (trying_) {
      EndTrial(now_ns);
    } else {
      passed_ += bytes_;
      // One slow measurement may be a thread that had no processor.
      slow_ = NsPerByte(chosen_) > kNews * judged_ns_per_byte_ ? slow_ + 1 : 0;
      const bool is_news = slow_ > 1 && passed_ >= kTryOften;
      if (is_news || passed_ >= try_after_) Switch(/*trying=*/true, now_ns);
    }
    busy_ns_ = 0;
    bytes_ = 0;
    tensors_ = 0;
  }
  void EndTrial(int64_t now_ns) {
    passed_ = 0;
    slow_ = 0;
    judged_ns_per_byte_ = std::min(NsPerByte(Mode::kParts), NsPerByte(Mode::kRead));
    if (NsPerByte(Other()) < kFaster * NsPerByte(chosen_)) {
      chosen_ = Other();
      trying_ = false;  // It is what goes on.
      try_after_ = kTryOften;
      lost_ = 0;
      return;
    }
    try_after_ = std::clamp(2 * try_after_, kTryOften, kTrySeldom);
    // The first may have lost by bad luck, such as memory that was new.
    if (++lost_ > 1) try_after_ = std::max(try_after_, WorthOfTrial());
    Switch(/*trying=*/false, now_ns);
  }
  // The bytes of which the trial that ends now may cost its share.
  uint64_t WorthOfTrial() {
    const double chosen = NsPerByte(chosen_);
    // Those under way are on the lost way, too.
    const double tried =
        static_cast<double>(bytes_) * (1 + static_cast<double>(under_way_) / tensors_);
    const double lost_ns = static_cast<double>(mixed_ns_) -
                           static_cast<double>(mixed_bytes_) * chosen +
                           tried * (NsPerByte(Other()) - chosen);
    // What stood still meanwhile is no cost of the way.
    return static_cast<uint64_t>(kTrialShare * std::clamp(lost_ns / chosen, 0.0, kSlowest * tried));
  }
  void Switch(bool trying, int64_t now_ns) {
    trying_ = trying;
    ++epoch_;
    of_before_ += under_way_;
    under_way_ = 0;
    since_ns_ = now_ns;
    mixed_ns_ = 0;
    mixed_bytes_ = 0;
  }

  // The other way must be that much faster, so that two of one speed do not take turns.
  static constexpr double kFaster = 0.9;
  static constexpr double kNews = 1.5;  // So much slower than when it was chosen.
  static constexpr double kSlowest = 8;

  const uint64_t measure_bytes_;
  Mode chosen_;
  bool trying_ = false;
  std::array<double, 2> ns_per_byte_{};  // By Mode, when it was measured last; 0: it was not.
  double judged_ns_per_byte_ = 0;        // The chosen way's, when it was chosen.
  uint64_t try_after_ = 0;               // How many bytes pass between two trials; at first few.
  uint64_t passed_ = 0;
  int lost_ = 0;        // Trials since the chosen way was chosen.
  int slow_ = 0;        // Measurements in a row that were news.
  uint32_t epoch_ = 1;  // Tensors that go the same path one after the other share an epoch.
  int under_way_ = 0;   // How many of this epoch are,
  int of_before_ = 0;   // and of those before.
  int64_t since_ns_ = 0;
  int64_t mixed_ns_ = 0;      // How long tensors went both ways after the last change,
  uint64_t mixed_bytes_ = 0;  // and how much came of them.
  int64_t busy_ns_ = 0;
  uint64_t bytes_ = 0;
  int tensors_ = 0;
};

// The gauges of one consumer, by size: which way is faster depends on the size as well as on the
// machine.
class ReadGauges {
 public:
  // Null: nothing is measured. `helps`: there are helpers, who read large tensors at once.
  // `decided`: without them the options say how tensors go.
  ReadGauge* Of(uint64_t bytes, bool helps, bool decided);
  // What was measured, for people: "tensors of 128 KiB to 1 MiB go in parts (8.5 GiB/s; read by
  // the consumer 6.5)".
  std::string Explain() const;

 private:
  using Mode = ReadGauge::Mode;
  // Whether helpers bring anything, and whether a trial without them costs more than it ever
  // brings.
  enum class Help : uint8_t { kNone, kSome, kNeeded };
  struct Class {
    uint64_t least_bytes;
    const char* sizes;
    Help help;
    ReadGauge gauge;
  };
  static constexpr uint64_t kSmall = ReadGauge::kMeasureSmallBytes;
  std::array<Class, 4> classes_{{
      {32 << 10, "of 32 to 128 KiB", Help::kNone, ReadGauge(Mode::kParts, kSmall)},
      {128 << 10, "of 128 KiB to 1 MiB", Help::kNone, ReadGauge(Mode::kParts, kSmall)},
      {1 << 20, "of 1 to 8 MiB", Help::kSome, ReadGauge(Mode::kParts)},
      {8 << 20, "from 8 MiB on", Help::kNeeded, ReadGauge(Mode::kRead)},
  }};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_READ_GAUGE_H_
