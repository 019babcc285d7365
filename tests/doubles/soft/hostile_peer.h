#ifndef TRYST_TESTS_DOUBLES_SOFT_HOSTILE_PEER_H_
#define TRYST_TESTS_DOUBLES_SOFT_HOSTILE_PEER_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/socket.h"

namespace tryst {

// The other end of a soft queue pair, played by a test that may send anything. It always dials,
// because its token is the smallest possible.
class HostilePeer {
 public:
  static constexpr uint32_t kNumber = 7;

  // The address that the victim must be given.
  static std::string Address(uint8_t sockets = 1);
  // A hello as an honest peer would send it.
  static SoftHello HelloFor(absl::string_view victim_address, uint8_t sockets = 1);

  explicit HostilePeer(absl::string_view victim_address);  // Dials, and sends nothing.

  void Say(const SoftHello& hello);
  void Say(const FrameHeader& header, const std::vector<uint8_t>& payload = {});
  void SayBytes(const std::vector<uint8_t>& bytes);
  // What has arrived so far. Empty: not yet, or never.
  absl::optional<SoftHello> HearHello();
  absl::optional<FrameHeader> HearHeader();
  std::vector<uint8_t> HearBytes(size_t bytes);
  void ForgetWhatWasHeard();
  bool Closed();  // Whether the victim has closed the socket, and everything that it sent was read.
  void HangUp() { fd_.Close(); }
  void EndSending() { shutdown(fd_.get(), SHUT_WR); }

 private:
  void Listen();

  Fd fd_;
  std::vector<uint8_t> heard_;
  bool closed_ = false;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SOFT_HOSTILE_PEER_H_
