#ifndef TRYST_BENCH_NIC_TRANSFER_H_
#define TRYST_BENCH_NIC_TRANSFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "verbs/nic.h"

namespace tryst {

// A connected pair of queue pairs, one for each of two threads, both of which spin:
// what RawSockets does, through the seam.
class NicTransfer {
 public:
  using OpenNic = std::function<std::unique_ptr<Nic>()>;

  static constexpr int kWindow = 16;  // Works in flight.

  // `bytes` of memory at each end. Dies where something fails: a benchmark has no use
  // for half a result.
  NicTransfer(const OpenNic& open, size_t bytes);
  ~NicTransfer();

  // Writes with immediate, `rounds` times there and back.
  void PingPong(bool first, size_t bytes, int rounds);
  // `count` writes, until the last is acknowledged; and the side that only polls.
  void WriteAll(size_t bytes, int places, int count);
  void PollUntilWritten();

 private:
  struct End {
    std::unique_ptr<Nic> nic;
    std::vector<uint8_t> memory;
    std::unique_ptr<Region> region;
    std::unique_ptr<CompletionQueue> completions;
    std::unique_ptr<QueuePair> queue_pair;
    int games = 0;  // Played to their end.
  };

  static End Open(const OpenNic& open, size_t bytes);
  static void PostReceive(End* end);
  static void PostWrite(End* from, const End& to, SendOp op, size_t offset, size_t bytes,
                        bool signaled);
  static size_t Poll(End* end, Completion* out, size_t count);

  End ends_[2];
  std::atomic<bool> written_{false};
  std::atomic<int> finished_{0};  // Games, by both.
};

}  // namespace tryst

#endif  // TRYST_BENCH_NIC_TRANSFER_H_
