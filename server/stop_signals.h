#ifndef TRYST_SERVER_STOP_SIGNALS_H_
#define TRYST_SERVER_STOP_SIGNALS_H_

#include "absl/time/time.h"

namespace tryst {

// Blocks SIGINT and SIGTERM in this thread and those that it will start: before any other.
void BlockStopSignals();
// Waits for one of them.
void WaitForStopSignal();
// The same for so long at most; whether one came.
bool StopSignalWithin(absl::Duration within);

}  // namespace tryst

#endif  // TRYST_SERVER_STOP_SIGNALS_H_
