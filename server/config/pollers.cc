#include "server/config/pollers.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tryst {
namespace {

constexpr int kMostByDefault = 8;
constexpr int kMostPollers = 64;
// Together with their poller they fill the memory of most machines, and they rest where others need
// the processors (docs/decisions/0061-help-with-large-tensors.md), so nobody has to choose.
constexpr int kMostHelpers = 7;
constexpr int kMostCpus = CPU_SETSIZE;

}  // namespace

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

absl::StatusOr<PollerPlan> PollerPlan::Parse(absl::string_view text) {
  PollerPlan plan;
  absl::string_view list = text;
  if (absl::ConsumePrefix(&list, "cpus:")) {
    absl::StatusOr<std::vector<int>> cpus = ParseCpus(list);
    if (!cpus.ok()) return cpus.status();
    plan.cpus = *std::move(cpus);
    plan.count = static_cast<int>(plan.cpus.size());
    if (plan.count > 0 && plan.count <= kMostPollers) return plan;
  } else if (text == "auto" || (absl::SimpleAtoi(text, &plan.count) && plan.count >= 0 &&
                                plan.count <= kMostPollers)) {
    return plan;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("pollers is '", text, "', and should be auto, a number up to ", kMostPollers,
                   ", or processors as in cpus:0,2,4-7"));
}

absl::StatusOr<std::vector<int>> ParseCpus(absl::string_view list) {
  std::vector<int> cpus;
  for (absl::string_view word : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(word, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last >= kMostCpus) {
      return absl::InvalidArgumentError(
          absl::StrCat("pollers has '", word, "', and should name processors as in cpus:0,2,4-7"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

int PollerCount(const ServerConfig& config, int cpus) {
  // A GPU's driver keeps state for the thread that calls it, and one poller owns all staging for
  // it.
  if (!config.gpus.empty()) return 1;
  const absl::StatusOr<PollerPlan> plan = PollerPlan::Parse(config.pollers);
  const bool says = plan.ok() && plan->count > 0;
  const int wanted = says ? plan->count : std::min(cpus / 2, kMostByDefault);
  return std::clamp(wanted, 1, std::max(cpus, 1));
}

int HelperCount(int cpus) { return std::clamp(cpus / 2 - 1, 0, kMostHelpers); }

}  // namespace tryst
