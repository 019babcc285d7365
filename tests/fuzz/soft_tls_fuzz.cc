// What the soft NIC reads before it knows who speaks, and what somebody on the wire makes of the
// records of two who do. The first byte selects which; whatever follows, nothing is delivered that
// was not sent.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/log.h"
#include "verbs/soft/soft_records.h"
#include "verbs/soft/soft_tls.h"

namespace tryst {
namespace {

struct FuzzPair {
  FuzzPair() {
    TRYST_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
  }
  ~FuzzPair() {
    close(fd[0]);
    close(fd[1]);
  }
  int fd[2];
};

void SayTo(int fd, const std::string& bytes) {
  // What does not fit into the socket is left out, as if the stranger had gone.
  [[maybe_unused]] const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
}

// Somebody who has no key.
void GreetAsStranger(const std::string& bytes) {
  static SoftTls* const tls = SoftTls::Create()->release();
  FuzzPair pair;
  SayTo(pair.fd[0], bytes);
  const auto session = tls->Accept(pair.fd[1], [](uint32_t number) {
    return number == 1 ? absl::make_optional(Token{1, 2, 3}) : absl::nullopt;
  });
  char byte;
  const iovec place = {&byte, 1};
  for (int i = 0; i < 8; ++i) TRYST_CHECK(session->Receive(&place, 1) <= 0);
}

// Reads what was sent as `text`; whatever comes is a part of it.
void ReadChanged(const std::string& wire, const std::string& text, size_t room) {
  FuzzPair pair;
  SoftBlocks blocks;
  SoftRecordReader reader(SoftTrafficSecret{7}, &blocks);
  SayTo(pair.fd[0], wire);
  std::string got;
  std::string place(room, '\0');
  for (;;) {
    const iovec into = {place.data(), place.size()};
    const ssize_t some = reader.Receive(pair.fd[1], &into, 1);
    if (some <= 0) break;
    got.append(place.data(), static_cast<size_t>(some));
  }
  TRYST_CHECK(text.compare(0, got.size(), got) == 0);
}

void ChangeRecords(const std::string& edits) {
  static const std::string* const text = new std::string(20'000, 'x');
  FuzzPair pair;
  SoftBlocks blocks;
  SoftRecordWriter writer(SoftTrafficSecret{7}, &blocks, 2);
  const iovec piece = {const_cast<char*>(text->data()), text->size()};
  TRYST_CHECK(writer.Send(pair.fd[0], &piece, 1) == static_cast<ssize_t>(text->size()));
  std::string wire(32 << 10, '\0');
  wire.resize(
      static_cast<size_t>(std::max<ssize_t>(recv(pair.fd[1], &wire[0], wire.size(), 0), 0)));
  // Three bytes each: where, and what to combine with.
  for (size_t i = 0; i + 2 < edits.size(); i += 3) {
    const size_t at = static_cast<uint8_t>(edits[i]) << 8 | static_cast<uint8_t>(edits[i + 1]);
    char& byte = wire[at % wire.size()];
    byte = static_cast<char>(byte ^ edits[i + 2]);
  }
  ReadChanged(wire, *text, 1 + edits.size() * 97 % 30'000);
}

}  // namespace
}  // namespace tryst

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      tryst::GreetAsStranger(rest);
      break;
    case 1:
      tryst::ChangeRecords(rest);
      break;
    case 2:
      tryst::ReadChanged(rest, "", 1000);
      break;
  }
  return 0;
}
