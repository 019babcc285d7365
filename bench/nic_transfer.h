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

// Two connected queue pairs, each used by one spinning thread. It does what RawSockets does,
// through verbs/nic.h.
class NicTransfer {
 public:
  using OpenNic = std::function<std::unique_ptr<Nic>()>;

  static constexpr int kWindow = 16;  // Works in flight.

  // `bytes`: the memory of each end. Any failure ends the process, because half a result is of no
  // use.
  NicTransfer(const OpenNic& open, size_t bytes);
  ~NicTransfer();

  // Sends a write with immediate there and back, `rounds` times.
  void PingPong(bool first, size_t bytes, int rounds);
  // Makes `count` writes, until the last is acknowledged. The other side only polls.
  void WriteAll(size_t bytes, int places, int count);
  void PollUntilWritten();

 private:
  struct End {
    std::unique_ptr<Nic> nic;
    std::vector<uint8_t> memory;
    std::unique_ptr<Region> region;
    std::unique_ptr<CompletionQueue> completions;
    std::unique_ptr<QueuePair> queue_pair;
    int games = 0;  // How many have ended.
  };

  static End Open(const OpenNic& open, size_t bytes);
  static void PostReceive(End* end);
  static void PostWrite(End* from, const End& to, SendOp op, size_t offset, size_t bytes,
                        bool signaled);
  static size_t Poll(End* end, Completion* out, size_t count);

  End ends_[2];
  std::atomic<bool> written_{false};
  std::atomic<int> finished_{0};  // Ended games, of both threads.
};

}  // namespace tryst

#endif  // TRYST_BENCH_NIC_TRANSFER_H_
