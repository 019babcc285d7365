#ifndef TRYST_TESTS_FRAMEWORKS_NCCL_NET_CASES_H_
#define TRYST_TESTS_FRAMEWORKS_NCCL_NET_CASES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tryst::nccl_net {

struct Target {
  std::string file;
  int version = 0;
  int kills = 2;             // How often a rank is killed.
  std::string named_victim;  // "pid": a warning must contain the dead rank's process number.
};

// One promise of a net plugin. Runs in a process of its own. kUnimplemented: the plugin does not
// claim that feature; the message says why.
struct Case {
  const char* name;
  const char* promise;
  absl::Status (*run)(const Target& target);
  bool beyond = false;  // NCCL's proxy does not need it today: it fails only with --strict.
};

std::vector<Case> SetUpCases();     // Tables, devices, connecting, closing, registering.
std::vector<Case> TransferCases();  // Whether the bytes arrive.
std::vector<Case> DeathCases();     // Ranks that die.

}  // namespace tryst::nccl_net

#endif  // TRYST_TESTS_FRAMEWORKS_NCCL_NET_CASES_H_
