#ifndef TRYST_TESTS_PROCESS_FAULTS_WORKER_PAGE_H_
#define TRYST_TESTS_PROCESS_FAULTS_WORKER_PAGE_H_

#include <atomic>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace tryst {

// What a worker tells the process that makes the faults, in shared memory that outlives the worker.
// Times are of CLOCK_MONOTONIC.
struct WorkerPage {
  std::atomic<int64_t> ready_ns;  // When this incarnation served and fetched.
  std::atomic<uint64_t> delivered;
  std::atomic<uint64_t> bytes;
  std::atomic<int64_t> last_delivery_ns;
  std::atomic<int64_t> last_break_ns;  // When it last saw a broken connection to the peer.
  std::atomic<uint64_t> breaks;
  std::atomic<uint64_t> aborted;      // Fetches that ended with kAborted,
  std::atomic<uint64_t> unavailable;  // or with kUnavailable, because their producer ended.
  std::atomic<uint64_t> wrong;        // Errors that must never happen.
  std::atomic<uint32_t> stop;         // Set by the other side: finish what is under way, and end.
  char first_wrong[256];

  void NoteWrong(absl::string_view what) {
    if (wrong.fetch_add(1) != 0) return;
    const size_t bytes_kept =
        what.size() < sizeof(first_wrong) ? what.size() : sizeof(first_wrong) - 1;
    memcpy(first_wrong, what.data(), bytes_kept);
    first_wrong[bytes_kept] = 0;
  }
};

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_FAULTS_WORKER_PAGE_H_
