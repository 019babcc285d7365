#ifndef TRYST_SERVER_CLI_ASK_WORKERS_H_
#define TRYST_SERVER_CLI_ASK_WORKERS_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/command_line.h"
#include "server/peer_client.h"

namespace tryst {

// "tryst: ..." on standard error; kExitFailed.
int Fail(const absl::Status& status);
// The same of what was never tried; kExitUsage.
int FailUsage(const absl::Status& status);
// kInvalidArgument: nobody has said where `worker` is.
absl::Status CheckPlace(Membership* members, const std::string& worker);
// Prints `text` or its error, and returns the exit status.
int Print(const absl::StatusOr<std::string>& text);

// The workers that a command is about, and the calls to reach them.
struct Asked {
  std::unique_ptr<PeerClient> client;
  std::vector<std::string> workers;
  size_t named = 0;  // Of those, the first so many: the others were found.
  // A worker that was found through the member list may be gone by now, so it gets less time than
  // one that the user named.
  absl::Duration Patience(size_t worker, absl::Duration timeout) const {
    return worker < named ? timeout : std::min(timeout, absl::Seconds(2));
  }
  std::vector<std::string> rest;  // Words that name no worker.
};

// The workers among the words; without any, all that the settings name. `and_theirs`: also
// those that these know, at most 256 in all. kInvalidArgument: nobody is named.
absl::StatusOr<Asked> WhomToAsk(const CommandLine& line, bool and_theirs);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_ASK_WORKERS_H_
