#ifndef TRYST_SERVER_PROCESS_STOP_SIGNALS_H_
#define TRYST_SERVER_PROCESS_STOP_SIGNALS_H_

#include "absl/time/time.h"

namespace tryst {

// For a daemon: as BlockStopSignals(), and SIGHUP too. SIGUSR1 and SIGUSR2, which would end the
// process, are ignored.
void BlockDaemonSignals();
enum class DaemonSignal { kStop, kReload };  // SIGINT or SIGTERM; SIGHUP.
DaemonSignal WaitForDaemonSignal();

// Blocks SIGINT and SIGTERM in this thread and those that it starts. Call it before any other
// thread starts.
void BlockStopSignals();
// Waits for one of the two signals.
void WaitForStopSignal();
// Waits for at most `within`; returns whether one came.
bool StopSignalWithin(absl::Duration within);

}  // namespace tryst

#endif  // TRYST_SERVER_PROCESS_STOP_SIGNALS_H_
