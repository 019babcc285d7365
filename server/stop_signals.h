#ifndef TRYST_SERVER_STOP_SIGNALS_H_
#define TRYST_SERVER_STOP_SIGNALS_H_

namespace tryst {

// Blocks SIGINT and SIGTERM in this thread and those that it will start: before any other.
void BlockStopSignals();
// Waits for one of them.
void WaitForStopSignal();

}  // namespace tryst

#endif  // TRYST_SERVER_STOP_SIGNALS_H_
