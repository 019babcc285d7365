#include "channel/shm/read_gauge.h"

#include "absl/strings/str_format.h"

namespace tryst {

ReadGauge* ReadGauges::Of(uint64_t bytes, bool helps, bool decided) {
  for (auto its = classes_.rbegin(); its != classes_.rend(); ++its) {
    if (bytes < its->least_bytes) continue;
    const bool helped = helps && its->help != Help::kNone;
    return helped || (!decided && its->help != Help::kNeeded) ? &its->gauge : nullptr;
  }
  return nullptr;
}

std::string ReadGauges::Explain() const {
  std::string text;
  for (const Class& its : classes_) {
    const bool reads = its.gauge.chosen() == Mode::kRead;
    const double chosen = its.gauge.BytesPerNs(its.gauge.chosen());
    const double other = its.gauge.BytesPerNs(reads ? Mode::kParts : Mode::kRead);
    if (chosen == 0) continue;
    const auto gib = [](double bytes_per_ns) { return bytes_per_ns * 1e9 / (uint64_t{1} << 30); };
    absl::StrAppendFormat(&text, "%stensors %s %s (%.1f GiB/s", text.empty() ? "" : ", ", its.sizes,
                          reads ? "are read by the consumer" : "go in parts", gib(chosen));
    if (other > 0) {
      absl::StrAppendFormat(&text, "; %s %.1f", reads ? "in parts" : "read by the consumer",
                            gib(other));
    }
    text += ")";
  }
  return text;
}

}  // namespace tryst
