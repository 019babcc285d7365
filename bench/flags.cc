#include "bench/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace tryst {

bool ParseBenchFlags(int argc, char** argv, BenchFlags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      flags->quick = true;
    } else if (flag == "--json" && i + 1 < argc) {
      flags->json_file = argv[++i];
    } else if (flag == "--only" && i + 1 < argc) {
      flags->only = argv[++i];
    } else if (flag == "--rounds" && i + 1 < argc) {
      flags->rounds = std::max(1, atoi(argv[++i]));
    } else {
      fprintf(stderr, "%s [--json FILE] [--rounds N] [--quick] [--only FIGURE]\n", argv[0]);
      return false;
    }
  }
  return true;
}

bool WriteLines(const std::string& json_file, const std::string& lines) {
  if (json_file.empty()) return true;
  std::ofstream file(json_file);
  file << lines;
  file.close();
  if (!file) fprintf(stderr, "cannot write %s\n", json_file.c_str());
  return static_cast<bool>(file);
}

}  // namespace tryst
