#ifndef TRYST_TESTS_PROCESS_E2E_TESTED_PATHS_H_
#define TRYST_TESTS_PROCESS_E2E_TESTED_PATHS_H_

#include <iosfwd>
#include <string>
#include <vector>

namespace tryst {

// One of the paths between processes, and the server flags that choose it.
struct TestedPath {
  const char* name;
  std::vector<std::string> flags;
  const char* path;  // What Explain() calls it.
};

void PrintTo(const TestedPath& path, std::ostream* out);

// Soft, Shm and Grpc. If TRYST_E2E_FLAGS and TRYST_E2E_PATH are set (in the guest), only that path.
std::vector<TestedPath> TestedPaths();

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_E2E_TESTED_PATHS_H_
