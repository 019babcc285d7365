#ifndef TRYST_SERVER_PROCESS_GRPC_LOG_H_
#define TRYST_SERVER_PROCESS_GRPC_LOG_H_

namespace tryst {

// What becomes of the lines that gRPC logs by itself, in the whole process. Only programs choose; a
// library leaves that to its program. Where GRPC_VERBOSITY is set, gRPC prints them itself.
enum class GrpcLog {
  // Errors become our warnings, and are limited as those are. One is dropped: gRPC writes it for
  // every TLS connection, because our certificates name a worker and no host.
  kAsOurs,
  kNowhere,  // The status of the failed call says more.
};
void SetGrpcLog(GrpcLog where);
// Chooses kAsOurs, unless the program has chosen: otherwise strangers could make gRPC log without
// end.
void BoundGrpcLog();

}  // namespace tryst

#endif  // TRYST_SERVER_PROCESS_GRPC_LOG_H_
