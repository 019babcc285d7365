#ifndef TRYST_VERBS_SOFT_HOSTILE_PEER_H_
#define TRYST_VERBS_SOFT_HOSTILE_PEER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "verbs/soft/frame.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/socket.h"

namespace tryst {

// The other end of a soft queue pair, played by a test that may say anything. It always
// dials, because its token is the smallest that there is.
class HostilePeer {
 public:
  static constexpr uint32_t kNumber = 7;

  // What the victim must be told to expect.
  static std::string Address(uint8_t sockets = 1);
  // A hello such as an honest peer would send.
  static SoftHello HelloFor(absl::string_view victim_address, uint8_t sockets = 1);

  explicit HostilePeer(absl::string_view victim_address);  // Dials, and says nothing.

  void Say(const SoftHello& hello);
  void Say(const FrameHeader& header, const std::vector<uint8_t>& payload = {});
  void SayBytes(const std::vector<uint8_t>& bytes);
  // What has come by now. Empty: not yet, or never.
  absl::optional<SoftHello> HearHello();
  absl::optional<FrameHeader> HearHeader();
  std::vector<uint8_t> HearBytes(size_t bytes);
  void ForgetWhatWasHeard();
  bool Closed();  // By the victim, and everything it said has been heard.
  void HangUp() { fd_.Close(); }

 private:
  void Listen();

  Fd fd_;
  std::vector<uint8_t> heard_;
  bool closed_ = false;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_HOSTILE_PEER_H_
