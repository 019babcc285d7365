#ifndef TRYST_TESTS_SIM_SEED_RUNNER_H_
#define TRYST_TESTS_SIM_SEED_RUNNER_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/types/optional.h"

namespace tryst {

struct SeedOptions {
  uint64_t seeds = 100;
  uint64_t from = 1;
  bool keep_going = false;  // After a seed that fails.
  bool verbose = false;
};

// What one seed came to.
struct SeedResult {
  std::vector<std::string> violations;  // Empty: all is well.
  uint64_t trace_hash = 0;
  std::string trace_tail;  // For people, when it fails.
};

// --seeds N --from S --keep-going --verbose. None: the command line is wrong, and
// `errors` says how.
absl::optional<SeedOptions> ParseSeedOptions(int argc, const char* const* argv,
                                             std::ostream& errors);

// Runs the seeds and prints the first that fails: what it broke, the end of its trace,
// and `command`, which replays it. A failing seed is run again; if that run differs, it
// says so, because then nothing can be learnt from the seed. Returns how many failed.
uint64_t RunSeeds(const SeedOptions& options, const std::string& command,
                  const std::function<SeedResult(uint64_t seed)>& run, std::ostream& out);

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SEED_RUNNER_H_
