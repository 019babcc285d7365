#ifndef TRYST_CHANNEL_TRACE_COUNTERS_H_
#define TRYST_CHANNEL_TRACE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace tryst {

// Counters by the names that `tryst stats` and /metrics show, such as "rdma_fetches". Values that
// several parts report under one name are added.
class Counters {
 public:
  struct Counter {
    int64_t value = 0;
    bool is_gauge = false;  // A present value; otherwise a count since the start.
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
