#ifndef TRYST_SERVER_PROCESS_GRPC_LOCKS_H_
#define TRYST_SERVER_PROCESS_GRPC_LOCKS_H_

namespace tryst {

// gRPC's locks are Abseil's, and where that was built with its checks, as Debian's is, each locking
// looks for deadlocks: a quarter of what a pull over gRPC costs. Ends that in the whole process,
// for others who use the same Abseil too. So programs call it, and the library that hides its own.
void StopLookingForDeadlocks();

}  // namespace tryst

#endif  // TRYST_SERVER_PROCESS_GRPC_LOCKS_H_
