#include "tests/attack/process_use.h"

#include <dirent.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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

bool TcpMemoryIsScarce() {
  // tcp_mem: the pages that are little, from which on the kernel saves, and that are all.
  std::ifstream limits("/proc/sys/net/ipv4/tcp_mem");
  uint64_t little = 0;
  uint64_t saves = 0;
  if (!(limits >> little >> saves)) return false;
  std::ifstream sockets("/proc/net/sockstat");
  std::string line;
  while (std::getline(sockets, line)) {
    uint64_t pages = 0;
    const size_t at = line.find(" mem ");
    if (absl::StartsWith(line, "TCP:") && at != std::string::npos &&
        absl::SimpleAtoi(line.substr(at + 5), &pages)) {
      return pages > saves;
    }
  }
  return false;
}

}  // namespace tryst
