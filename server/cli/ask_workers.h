#ifndef TRYST_SERVER_CLI_ASK_WORKERS_H_
#define TRYST_SERVER_CLI_ASK_WORKERS_H_

#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/cli/command_line.h"
#include "server/peer_client.h"

namespace tryst {

// Prints "tryst: ..." on standard error; returns kExitFailed.
int Fail(const absl::Status& status);
// Like Fail(), for a command that was not even tried; returns kExitUsage.
int FailUsage(const absl::Status& status);
// kInvalidArgument: nothing says at which address `worker` is.
absl::Status CheckPlace(Membership* members, const std::string& worker);
// Writes to standard output what workers have said, so that a terminal obeys none of it
// (base/printable.h). `json`: it is a document, and stays one.
void Show(absl::string_view text, bool json);
// Shows `text` or its error, and returns the exit status.
int Print(const absl::StatusOr<std::string>& text, bool json = false);

// The workers that a command asks, and the calls to reach them.
struct Asked {
  std::unique_ptr<PeerClient> client;
  std::vector<std::string> workers;
  size_t named = 0;  // The first `named` workers were named by the user; the others were found.
  // A worker that was found through the member list may be gone by now, so it gets less time than
  // one that the user named.
  absl::Duration Patience(size_t worker, absl::Duration timeout) const {
    return worker < named ? timeout : std::min(timeout, absl::Seconds(2));
  }
  std::vector<std::string> rest;  // The words of the command line that name no worker.
};

// What a worker explains of all its paths (Insight::PathsJson()). kDataLoss: that is no JSON.
absl::StatusOr<google::protobuf::Struct> ExplainedBy(PeerCalls* calls, const std::string& worker,
                                                     absl::Duration timeout);
// Fields of it; 0 and "" where there is none. The text is fit for a terminal.
double NumberIn(const google::protobuf::Struct& object, const char* name);
std::string TextIn(const google::protobuf::Struct& object, const char* name);

// The workers among the words; without any, all that the settings name. With `and_theirs`, also the
// members that these know, at most 256 in all. kInvalidArgument: no worker is named.
absl::StatusOr<Asked> WhomToAsk(const CommandLine& line, bool and_theirs);

}  // namespace tryst

#endif  // TRYST_SERVER_CLI_ASK_WORKERS_H_
