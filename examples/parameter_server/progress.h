#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_

#include <cstdint>
#include <string>

namespace tryst {

// What a task tells the launcher, by lines of its output that begin with '@'. Other lines are for
// people.
struct Progress {
  int64_t examples = 0;  // Since the last line; `bytes` too.
  int64_t bytes = 0;     // Moved, in both directions.
  double loss = -1;      // Of the last batches; -1: none.
  double held_out = -1;
};
std::string ProgressLine(const Progress& progress);
bool ParseProgress(const std::string& line, Progress* progress);

// The line by which a task says that it is up, and with which seed others join.
std::string SeedLine(const std::string& seed);
bool ParseSeed(const std::string& line, std::string* seed);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_
