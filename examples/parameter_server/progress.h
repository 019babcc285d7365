#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_

#include <cstdint>
#include <string>

namespace tryst {

// What a task tells the launcher by a line of its output that begins with '@'; other
// lines are for people.
struct Progress {
  int64_t examples = 0;  // Since the last line, as bytes.
  int64_t bytes = 0;     // Moved, both ways.
  double loss = -1;      // Of the last batches; -1: nothing to say.
  double held_out = -1;
};
std::string ProgressLine(const Progress& progress);
bool ParseProgress(const std::string& line, Progress* progress);

// "I am there", with what others join by.
std::string SeedLine(const std::string& seed);
bool ParseSeed(const std::string& line, std::string* seed);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_PROGRESS_H_
