#ifndef TRYST_VERBS_START_THREAD_H_
#define TRYST_VERBS_START_THREAD_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"

namespace tryst {

// Starts a thread that runs `run`. kResourceExhausted: the system has none for us, which ends
// nobody's process; `what` says what the thread was for.
absl::Status StartThread(const std::string& what, std::function<void()> run, std::thread* out);

}  // namespace tryst

#endif  // TRYST_VERBS_START_THREAD_H_
