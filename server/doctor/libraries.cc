#include "server/doctor/libraries.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_split.h"

namespace tryst {

std::vector<std::string> LibraryFiles(const Host& host, const std::string& name) {
  std::vector<std::string> folders =
      absl::StrSplit(host.Variable("LD_LIBRARY_PATH"), ':', absl::SkipEmpty());
  for (const char* folder :
       {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib", "/usr/local/lib",
        "/usr/local/nvidia/lib64"}) {
    folders.emplace_back(folder);
  }
  std::vector<std::string> files;
  std::set<std::string> real;
  for (const std::string& folder : folders) {
    std::error_code error;
    const auto path = std::filesystem::canonical(host.Below(folder + "/" + name), error);
    if (!error && real.insert(path.string()).second) files.push_back(folder + "/" + name);
  }
  return files;
}

}  // namespace tryst
