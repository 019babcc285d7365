#include "server/pollers.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tryst {
namespace {

constexpr int kMostByDefault = 8;
// Together with their poller they fill the memory of most machines.
constexpr int kMostHelpersByDefault = 7;
constexpr int kMostCpus = CPU_SETSIZE;

}  // namespace

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int PollerCount(const ServerConfig& config, int cpus) {
  // A GPU's driver keeps state for the thread that calls it, and one poller owns all staging for
  // it.
  if (!config.gpus.empty()) return 1;
  const int wanted =
      config.pollers > 0 ? static_cast<int>(config.pollers) : std::min(cpus / 2, kMostByDefault);
  return std::clamp(wanted, 1, std::max(cpus, 1));
}

int HelperCount(const ServerConfig& config, int cpus) {
  if (config.helpers >= 0) return static_cast<int>(config.helpers);
  return std::clamp(cpus / 2 - 1, 0, kMostHelpersByDefault);
}

int CallbackThreads(const ServerConfig& config, int pollers) {
  return config.callback_threads > 0 ? static_cast<int>(config.callback_threads) : pollers + 1;
}

absl::StatusOr<std::vector<int>> PollerCpus(absl::string_view list) {
  std::vector<int> cpus;
  for (absl::string_view word : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(word, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last >= kMostCpus) {
      return absl::InvalidArgumentError(absl::StrCat(
          "poller_cpus has '", word, "', and should be numbers of processors as in 0,2,4-7"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace tryst
