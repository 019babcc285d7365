#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_LAUNCHER_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_LAUNCHER_H_

#include "absl/status/status.h"
#include "examples/parameter_server/corpus.h"
#include "examples/parameter_server/options.h"

namespace tryst {

// Runs the whole job on this machine and leaves nothing running. OK only if no task ended except
// those that we killed, all others stopped cleanly, and the held-out loss fell. Call it before the
// process uses gRPC.
absl::Status Launch(const Options& options, const Corpus& corpus);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_LAUNCHER_H_
