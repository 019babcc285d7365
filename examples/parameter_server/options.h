#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_OPTIONS_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tryst {

// The example's own flags; all others are settings of a server.
struct Options {
  // "ps" or "worker": a task that the launcher starts and ends. "task": one that a scheduler starts
  // and ends; the cluster's resolver says which. Empty: the launcher.
  std::string role;
  bool scheduled() const { return role == "task"; }
  int servers = 2;
  int workers = 3;
  bool synchronous = false;
  double seconds = 12;  // How long training lasts.
  // After this many seconds one worker gets SIGKILL and is started again; 0: never.
  double kill_worker = 4;
  double kill_ps = 8;
  double rate = 0.02;  // Adagrad's learning rate.
  bool mixed = true;   // The last worker uses only gRPC.
  std::vector<std::string> texts;
  std::string plot = "demo_loss.svg";
  std::string folder;    // For snapshots; empty: a temporary one.
  bool verbose = false;  // Every task says all that it knows of its connections.
  // A scheduler's tasks have nobody else to tell what they do.
  bool detailed() const { return verbose || scheduled(); }

  std::vector<std::string> server_flags;
};

std::string OptionsHelp();
// kInvalidArgument says what is wrong, and which flags there are.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& args);
// The flags for a task that has the same options.
std::vector<std::string> OptionFlags(const Options& options);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_OPTIONS_H_
