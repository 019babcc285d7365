#ifndef TRYST_TESTS_SIM_SIM_COVERAGE_H_
#define TRYST_TESTS_SIM_SIM_COVERAGE_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "channel/ops/fetch_table.h"
#include "channel/ops/serve_table.h"
#include "channel/ops/slot_watch.h"
#include "tests/sim/sim_weights.h"

namespace tryst {

// How often each event came in each state of the two tables.
struct TableCounts {
  std::array<std::array<uint64_t, kFetchEventCount>, kFetchStateCount> fetch{};
  std::array<std::array<uint64_t, kServeEventCount>, kServeStateCount> serve{};

  TableCounts& operator+=(const TableCounts& other);
};

// Counts what comes by, and passes it on to `next`, if that is not null. `broken` gets what a peer
// did, where it has broken a rule.
class TableWatch final : public SlotWatch {
 public:
  using Broken = std::function<void(const absl::Status& why)>;
  TableWatch(SlotWatch* next, Broken broken) : next_(next), broken_(std::move(broken)) {}
  const TableCounts& counts() const { return counts_; }

  void OnFetchEvent(const void* end, const FetchAsk& ask, FetchState from,
                    FetchEvent event) override;
  void OnSlotFreed(const void* end, uint16_t slot) override {
    if (next_ != nullptr) next_->OnSlotFreed(end, slot);
  }
  void OnServeEvent(const void* end, uint16_t slot, ServeState from, ServeEvent event) override;
  void OnServeEpoch(const void* end) override {
    if (next_ != nullptr) next_->OnServeEpoch(end);
  }
  void OnServeFarewell(const void* end) override {
    if (next_ != nullptr) next_->OnServeFarewell(end);
  }
  void OnEndGone(const void* end) override {
    if (next_ != nullptr) next_->OnEndGone(end);
  }
  void OnLinkBroken(const absl::Status& why) override {
    if (absl::IsDataLoss(why)) broken_(why);
  }

 private:
  SlotWatch* const next_;
  const Broken broken_;
  TableCounts counts_;
};

// Which troubles there were in a seed.
using Troubles = std::bitset<kTroubleCount>;

// What the seeds of one run of the simulator have reached: rows of the tables, guards
// (base/reached.h), and pairs of troubles in one seed.
class SimCoverage {
 public:
  // Guards that were reached before do not count.
  explicit SimCoverage(bool has_shm = false);
  void Add(const TableCounts& tables, const Troubles& troubles);

  // All of it, the least reached first.
  std::string ToText() const;
  // Weights for another run: a trouble comes more often if seeds that reached one of the least
  // reached goals had it more often than others, and less often if they had it less. Equal runs
  // teach equal weights.
  SimWeights Learn(const SimWeights& now) const;

 private:
  enum class Kind { kFetch, kServe, kGuard, kPair };
  struct Goal {
    Kind kind = Kind::kGuard;
    uint64_t seeds = 0;
    uint64_t times = 0;
    std::array<uint64_t, kTroubleCount> with{};  // How many of those seeds had each trouble.
  };
  void Count(Goal* goal, uint64_t times, const Troubles& troubles);
  void CountGuards(const Troubles* troubles);
  static const char* Title(Kind kind);

  std::map<std::string, Goal> goals_;
  std::map<std::string, uint64_t> guards_seen_;
  uint64_t seeds_ = 0;
  std::array<uint64_t, kTroubleCount> seeds_with_{};
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SIM_COVERAGE_H_
