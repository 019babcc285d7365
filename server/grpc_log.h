#ifndef TRYST_SERVER_GRPC_LOG_H_
#define TRYST_SERVER_GRPC_LOG_H_

namespace tryst {

// What becomes of the lines that gRPC logs by itself, in the whole process: for programs.
// GRPC_VERBOSITY, where it is set, has them printed by gRPC as ever.
enum class GrpcLog {
  kAsOurs,   // Errors become warnings of ours, as seldom as those are; but for one that it
             // writes of every TLS connection, whose certificate names a worker and no host.
  kNowhere,  // The status of a call says it better.
};
void SetGrpcLog(GrpcLog where);
// kAsOurs, unless somebody has chosen: strangers make gRPC write without end otherwise.
void BoundGrpcLog();

}  // namespace tryst

#endif  // TRYST_SERVER_GRPC_LOG_H_
