#ifndef TRYST_BENCH_RAW_SOCKETS_H_
#define TRYST_BENCH_RAW_SOCKETS_H_

#include <cstddef>
#include <cstdint>

namespace tryst {

// The kernel's stream sockets alone, the limit for everything built on them. Both ends are in this
// process, each with a spinning thread.
class RawSockets {
 public:
  enum class Kind { kTcp, kUnix };

  explicit RawSockets(Kind kind);  // Ends the process if it cannot make sockets.
  ~RawSockets();
  RawSockets(const RawSockets&) = delete;
  RawSockets& operator=(const RawSockets&) = delete;

  // Sends bytes there and back, `rounds` times. One thread calls it with `first`, the other
  // without.
  void PingPong(bool first, uint8_t* memory, size_t bytes, int rounds);
  // Sends `count` messages to the other end, which says when it has all of them. Each lands in the
  // next of `places` in `memory`.
  void SendAll(const uint8_t* memory, size_t bytes, int places, int count);
  void ReceiveAll(uint8_t* memory, size_t bytes, int places, int count);

 private:
  int fd_[2];
};

}  // namespace tryst

#endif  // TRYST_BENCH_RAW_SOCKETS_H_
