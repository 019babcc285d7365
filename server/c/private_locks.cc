// In the library whose Abseil no other sees: its locks are its own.
#include "server/process/grpc_locks.h"

namespace {

[[maybe_unused]] const bool stopped = [] {
  tryst::StopLookingForDeadlocks();
  return true;
}();

}  // namespace
