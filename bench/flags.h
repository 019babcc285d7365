#ifndef TRYST_BENCH_FLAGS_H_
#define TRYST_BENCH_FLAGS_H_

#include <string>

namespace tryst {

// The flags of benches that measure by turns.
struct BenchFlags {
  std::string json_file;  // --json FILE
  std::string only;       // --only FIGURE; empty: all.
  int rounds = 5;         // --rounds N
  bool quick = false;     // --quick

  bool Wants(const char* figure) const { return only.empty() || only == figure; }
};

// Returns false and prints the known flags if there is an unknown one.
bool ParseBenchFlags(int argc, char** argv, BenchFlags* flags);

// Writes `lines` to the file, or nowhere if the name is empty. If that fails, prints why and
// returns false.
bool WriteLines(const std::string& json_file, const std::string& lines);

}  // namespace tryst

#endif  // TRYST_BENCH_FLAGS_H_
