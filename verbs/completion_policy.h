#ifndef TRYST_VERBS_COMPLETION_POLICY_H_
#define TRYST_VERBS_COMPLETION_POLICY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/error_scope.h"
#include "verbs/nic.h"

namespace tryst {

// What one kind of completion means for us. The table in docs/ERRORS.md is printed from these.
struct CompletionPolicy {
  CompletionStatus status;
  absl::StatusCode code;  // For an operation that waits for the work and cannot be replayed.
  ErrorScope scope;
  const char* meaning;
  const char* action;
};

const CompletionPolicy& PolicyOf(CompletionStatus status);

// The error for `completion`, with its scope. `what` names the operation ("write of 4096 B to
// worker /job:ps/task:1"). OK for kOk.
absl::Status CompletionError(const Completion& completion, absl::string_view what);

// The table as Markdown.
std::string CompletionPolicyTable();

}  // namespace tryst

#endif  // TRYST_VERBS_COMPLETION_POLICY_H_
