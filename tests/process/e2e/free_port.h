#ifndef TRYST_TESTS_PROCESS_E2E_FREE_PORT_H_
#define TRYST_TESTS_PROCESS_E2E_FREE_PORT_H_

namespace tryst {

// A port on which nobody listens now. The kernel gives such a port to no connection, so that it is
// still free when a server starts on it, and when one starts again.
int FreePort();

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_E2E_FREE_PORT_H_
