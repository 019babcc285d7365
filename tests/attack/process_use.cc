#include "tests/attack/process_use.h"

#include <dirent.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace tryst {

uint64_t ResidentBytes(const std::string& pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  while (status >> word) {
    uint64_t kilobytes = 0;
    if (word == "VmRSS:" && status >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

int OpenDescriptors(const std::string& pid) {
  DIR* const folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (folder == nullptr) return -1;
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // Without ".", ".." and the folder itself.
}

}  // namespace tryst
