#ifndef TRYST_TESTS_ATTACK_HTTP2_FLOOD_H_
#define TRYST_TESTS_ATTACK_HTTP2_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace tryst {

enum class Flood {
  kResets,         // Streams that are opened and reset again and again.
  kOpen,           // Streams that are opened and left open.
  kContinuations,  // A header that never ends.
  kHeaders,        // Huge headers.
  kPings,
  kSettings,
  kDrip,       // A byte now and then.
  kReconnect,  // Connections that greet and close, as fast as possible.
  kNonsense,   // Bytes that are not HTTP/2.
  kBombs,      // Messages of zeros that are a thousand times as large as what travels.
};
const char* FloodName(Flood flood);
const std::vector<Flood>& AllFloods();

// Floods a port of the loopback without authenticating. It speaks plain TCP; a TLS server sees
// nonsense before a handshake.
class Http2Flood {
 public:
  // Keeps `connections` open from the address `from`. Each is opened again when it ends.
  Http2Flood(Flood flood, int port, int connections, const std::string& from = "127.0.0.1");
  ~Http2Flood();

  uint64_t bytes() const { return bytes_.load(); }
  uint64_t connections() const { return connections_.load(); }

 private:
  void Run();
  // Floods one connection until it ends.
  void Fill(int fd);

  const Flood flood_;
  const int port_;
  const std::string from_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> connections_{0};
  std::vector<std::thread> threads_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_HTTP2_FLOOD_H_
