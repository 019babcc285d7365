#ifndef TRYST_BENCH_RAW_SOCKETS_H_
#define TRYST_BENCH_RAW_SOCKETS_H_

#include <cstddef>
#include <cstdint>

namespace tryst {

// What the kernel's stream sockets do when nothing is built on them: the roofline of
// anything that is. Both ends are this process's, one thread each, and spin.
class RawSockets {
 public:
  enum class Kind { kTcp, kUnix };

  explicit RawSockets(Kind kind);  // Dies where there are no sockets.
  ~RawSockets();
  RawSockets(const RawSockets&) = delete;
  RawSockets& operator=(const RawSockets&) = delete;

  // `rounds` times there and back; `first` on one thread, !first on the other.
  void PingPong(bool first, uint8_t* memory, size_t bytes, int rounds);
  // `count` messages to the other end, which says when it has them all. Each goes to
  // the next of `places` in `memory`.
  void SendAll(const uint8_t* memory, size_t bytes, int places, int count);
  void ReceiveAll(uint8_t* memory, size_t bytes, int places, int count);

 private:
  int fd_[2];
};

}  // namespace tryst

#endif  // TRYST_BENCH_RAW_SOCKETS_H_
