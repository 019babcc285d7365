#include "examples/parameter_server/progress.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tryst {

std::string ProgressLine(const Progress& progress) {
  return absl::StrCat("@progress ", progress.examples, " ", progress.bytes, " ", progress.loss, " ",
                      progress.held_out);
}

bool ParseProgress(const std::string& line, Progress* progress) {
  return std::sscanf(line.c_str(), "@progress %ld %ld %lf %lf", &progress->examples,
                     &progress->bytes, &progress->loss, &progress->held_out) == 4;
}

std::string SeedLine(const std::string& seed) { return absl::StrCat("@seed ", seed); }

bool ParseSeed(const std::string& line, std::string* seed) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "@seed ")) return false;
  *seed = std::string(rest);
  return true;
}

}  // namespace tryst
