#include "tests/sim/seed_runner.h"

#include "absl/strings/numbers.h"

namespace tryst {

absl::optional<SeedOptions> ParseSeedOptions(int argc, const char* const* argv,
                                             std::ostream& errors) {
  SeedOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--keep-going") {
      options.keep_going = true;
    } else if (word == "--verbose") {
      options.verbose = true;
    } else if (word == "--seeds" || word == "--from") {
      uint64_t* const number = word == "--seeds" ? &options.seeds : &options.from;
      if (i + 1 == argc || !absl::SimpleAtoi(argv[i + 1], number)) {
        errors << word << " wants a number\n";
        return absl::nullopt;
      }
      ++i;
    } else {
      errors << "usage: " << argv[0] << " [--seeds N] [--from S] [--keep-going] [--verbose]\n";
      return absl::nullopt;
    }
  }
  return options;
}

uint64_t RunSeeds(const SeedOptions& options, const std::string& command,
                  const std::function<SeedResult(uint64_t seed)>& run, std::ostream& out) {
  uint64_t failed = 0;
  for (uint64_t i = 0; i < options.seeds; ++i) {
    const uint64_t seed = options.from + i;
    if (options.verbose) out << "seed " << seed << "\n";
    const SeedResult result = run(seed);
    if (result.violations.empty()) continue;
    ++failed;
    out << "seed " << seed << " fails; replay it with: " << command << " --seeds 1 --from " << seed
        << "\n";
    for (const std::string& violation : result.violations) out << "  " << violation << "\n";
    out << result.trace_tail;
    if (run(seed).trace_hash != result.trace_hash) {
      out << "and a second run of it went another way: something is not drawn from the seed\n";
    }
    out.flush();
    if (!options.keep_going) break;
  }
  return failed;
}

}  // namespace tryst
