#ifndef TRYST_TESTS_FRAMEWORKS_NCCL_NET_WORLD_H_
#define TRYST_TESTS_FRAMEWORKS_NCCL_NET_WORLD_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "tests/frameworks/nccl_net/comm_pair.h"

namespace tryst::nccl_net {

// What ranks of several processes share: handles, and how far each rank is.
struct SharedPage {
  static constexpr int kMaxRanks = 4;
  static constexpr int kFigures = 16;

  struct Listener {
    std::atomic<int> ready;
    char handle[nccl::kHandleBytes];
  };
  Listener listeners[kMaxRanks][kMaxRanks];  // A rank's listener for each peer.
  std::atomic<int> phase[kMaxRanks];
  std::atomic<int64_t> killed_at_us;
  std::atomic<int64_t> noticed_at_us[kMaxRanks];
  std::atomic<int> named[kMaxRanks];
  std::atomic<double> figures[kFigures];
  char errors[kMaxRanks][512];
};

int64_t NowUs();
SharedPage* NewSharedPage();  // Lives as long as the process.

// Starts ranks in processes of their own. A rank's error is stored in the page.
std::vector<pid_t> StartRanks(int count, SharedPage* page,
                              const std::function<absl::Status(int rank)>& run);
// OK: the process ended in order.
absl::Status Reap(pid_t pid, const SharedPage& page, int rank);
absl::Status AwaitPhase(const SharedPage& page, int rank, int phase);

// One comm to `peer` and one from it, as NCCL makes them for a ring.
struct PeerComms {
  void* listen = nullptr;
  void* send = nullptr;
  void* recv = nullptr;
};
absl::Status ConnectRank(const Opened& opened, SharedPage* page, int rank, int peer,
                         PeerComms* out);

}  // namespace tryst::nccl_net

#endif  // TRYST_TESTS_FRAMEWORKS_NCCL_NET_WORLD_H_
