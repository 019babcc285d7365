#include "verbs/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {

absl::Status StartThread(const std::string& what, std::function<void()> run, std::thread* out) {
  try {
    *out = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for ", what, ": ", error.what(),
                     "; raise the limit of processes (ulimit -u, or the cgroup's pids.max)"));
  }
  return absl::OkStatus();
}

}  // namespace tryst
