#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_OPTIONS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tryst {

// The example's own flags; what is left are settings of every server.
struct Options {
  // "ps" or "worker": a task that the launcher starts and ends. "task": one that a scheduler
  // does, which is what the cluster's resolver says. Empty: the launcher.
  std::string role;
  bool scheduled() const { return role == "task"; }
  int servers = 2;
  int workers = 3;
  bool synchronous = false;
  double seconds = 12;     // Of training.
  double kill_worker = 4;  // Seconds after which one gets -9 and starts again; 0: never.
  double kill_ps = 8;
  double rate = 0.02;  // Adagrad's.
  bool mixed = true;   // The last worker speaks gRPC alone.
  std::vector<std::string> texts;
  std::string plot = "demo_loss.svg";
  std::string folder;  // Of snapshots; empty: a temporary one.

  std::vector<std::string> server_flags;
};

std::string OptionsHelp();
// kInvalidArgument: what is wrong, and what there is.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args);
// For a task: every flag again.
std::vector<std::string> OptionFlags(const Options& options);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_OPTIONS_H_
