#ifndef TRYST_TESTS_ATTACK_HALF_MESSAGES_H_
#define TRYST_TESTS_ATTACK_HALF_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/attack/http2_wire.h"
#include "tests/attack/insider.h"

namespace tryst {

// A member's connection, by hand, on which calls send all of a message but its last byte: so the
// server holds it, and nobody hears of the call.
class HalfMessages {
 public:
  static constexpr size_t kMessageBytes = 3 << 20;
  HalfMessages(Insider::Target target, const std::string& name, uint64_t incarnation);
  ~HalfMessages();
  // Sends those of so many more calls, and between them says who calls, as a member may send only
  // so much without. False: the server has ended the connection, or takes nothing for ten seconds.
  bool Send(size_t calls);
  // How many calls the server has ended.
  size_t ended() const { return ended_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Call {
    uint32_t stream;
    size_t left;     // How much of its message is still to be sent,
    int64_t window;  // and may be.
  };
  void SayWhoCalls();
  bool Hear();
  void OnFrame(Http2 type, uint8_t flags, uint32_t stream, const std::string& payload);
  void SendSome(Call* call);
  bool Flush();

  const Insider::Target target_;
  CallSigner signer_;
  int fd_ = -1;
  std::string out_, in_;
  int64_t window_ = 65535;        // How much more the connection may send,
  int64_t first_window_ = 65535;  // and a call that begins.
  int64_t since_said_ = 0;        // How much it has sent since it has said who calls.
  uint32_t next_stream_ = 1;
  std::vector<Call> sending_;
  std::set<uint32_t> open_;  // The streams of calls that the server has not ended.
  size_t ended_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_HALF_MESSAGES_H_
