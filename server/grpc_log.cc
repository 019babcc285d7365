#include "server/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "base/log.h"

namespace tryst {
namespace {

void LogAsOurs(gpr_log_func_args* args) {
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  if (absl::StrContains(args->message, "No match found for server name")) return;
  TRYST_LOG(Warning) << "gRPC: " << args->message;
}

void LogNowhere(gpr_log_func_args*) {}

}  // namespace

void SetGrpcLog(GrpcLog where) {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function(where == GrpcLog::kAsOurs ? LogAsOurs : LogNowhere);
}

}  // namespace tryst
