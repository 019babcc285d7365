#include "tests/process/e2e/tested_paths.h"

#include <cstdlib>
#include <ostream>

#include "absl/strings/str_split.h"

namespace tryst {

void PrintTo(const TestedPath& path, std::ostream* out) { *out << path.name; }

std::vector<TestedPath> TestedPaths() {
  const char* flags = std::getenv("TRYST_E2E_FLAGS");
  const char* path = std::getenv("TRYST_E2E_PATH");
  if (flags != nullptr && path != nullptr) {
    return {{"Given", absl::StrSplit(flags, ' ', absl::SkipEmpty()), path}};
  }
  return {{"Soft", {"--nic=soft", "--shm=off"}, "over rdma/soft"},
          {"Shm", {"--nic=soft", "--shm=on"}, "over shm: "},
          {"Grpc", {"--protocol=grpc", "--nic=calls"}, "grpc to "},
          {"GrpcStream", {"--protocol=grpc"}, "over grpc/stream: "}};
}

}  // namespace tryst
