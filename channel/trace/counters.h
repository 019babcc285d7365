#ifndef TRYST_CHANNEL_TRACE_COUNTERS_H_
#define TRYST_CHANNEL_TRACE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// Counters by their names, as `tryst stats` and /metrics show them: "rdma_fetches". What several
// say under one name is added up.
class Counters {
 public:
  struct Counter {
    int64_t value = 0;
    bool is_gauge = false;  // What is so now; otherwise what has been since the beginning.
  };

  void Count(absl::string_view name, uint64_t value) { Add(name, value, false); }
  void Gauge(absl::string_view name, uint64_t value) { Add(name, value, true); }
  const std::map<std::string, Counter>& all() const { return all_; }

 private:
  void Add(absl::string_view name, uint64_t value, bool is_gauge) {
    Counter* counter = &all_[std::string(name)];
    counter->value += static_cast<int64_t>(value);
    counter->is_gauge = is_gauge;
  }

  std::map<std::string, Counter> all_;
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_TRACE_COUNTERS_H_
