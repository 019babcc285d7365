#include "server/process/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>
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

std::atomic<bool> chosen{false};

void LogNowhere(gpr_log_func_args*) {}

}  // namespace

void SetGrpcLog(GrpcLog where) {
  chosen.store(true);
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function(where == GrpcLog::kAsOurs ? LogAsOurs : LogNowhere);
}

void BoundGrpcLog() {
  if (!chosen.load()) SetGrpcLog(GrpcLog::kAsOurs);
}

}  // namespace tryst
