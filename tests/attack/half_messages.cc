#include "tests/attack/half_messages.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tryst {
namespace {

constexpr size_t kFrameBytes = 16 << 10;
constexpr size_t kMostUnsent = 1 << 20;
// Well within what a member may send between two calls that say who makes them.
constexpr int64_t kSaidAfter = 1 << 20;

uint32_t Number(const std::string& text, size_t at, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[at + i]);
  return value;
}

int Connected(const std::string& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return -1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

HalfMessages::HalfMessages(Insider::Target target, const std::string& name, uint64_t incarnation)
    : target_(std::move(target)),
      signer_({target_.cluster, name, incarnation}, target_.token, UnixMs),
      fd_(Connected(target_.address)) {
  out_ = Http2Preface();
  SayWhoCalls();
}

HalfMessages::~HalfMessages() {
  if (fd_ >= 0) close(fd_);
}

// A whole call, of an empty message.
void HalfMessages::SayWhoCalls() {
  const std::string statement =
      signer_.Sign(target_.worker, "/tryst.rpc.TransportService/Heartbeat", "");
  out_ += Http2Frame(Http2::kHeaders, kEndHeaders, next_stream_,
                     absl::StrCat(CallHeaders("Heartbeat"),
                                  Http2Header(kCallerMetadata, absl::Base64Escape(statement))));
  const std::string message = MessageHead(/*compressed=*/false, 0);
  out_ += Http2Frame(Http2::kData, kEndStream, next_stream_, message);
  window_ -= static_cast<int64_t>(message.size());
  next_stream_ += 2;
  since_said_ = 0;
}

bool HalfMessages::Send(size_t calls) {
  for (size_t i = 0; i < calls; ++i, next_stream_ += 2) {
    out_ += Http2Frame(Http2::kHeaders, kEndHeaders, next_stream_, CallHeaders("Hello"));
    sending_.push_back({next_stream_, kMessageHeadBytes + kMessageBytes - 1, first_window_});
    open_.insert(next_stream_);
  }
  absl::Time took = absl::Now();
  for (;;) {
    const uint64_t before = bytes_;
    sending_.erase(std::remove_if(sending_.begin(), sending_.end(),
                                  [this](const Call& call) {
                                    return call.left == 0 || open_.count(call.stream) == 0;
                                  }),
                   sending_.end());
    for (Call& call : sending_) SendSome(&call);
    if (!Flush() || !Hear()) return false;
    if (sending_.empty() && out_.empty()) return true;
    if (bytes_ != before) took = absl::Now();
    if (absl::Now() - took > absl::Seconds(10)) return false;
  }
}

void HalfMessages::SendSome(Call* call) {
  while (out_.size() < kMostUnsent) {
    const int64_t bytes = std::min<int64_t>(
        {static_cast<int64_t>(std::min(call->left, kFrameBytes)), call->window, window_});
    const bool begins = call->left == kMessageHeadBytes + kMessageBytes - 1;
    if (bytes < (begins ? static_cast<int64_t>(kMessageHeadBytes) : 1)) return;
    std::string payload(static_cast<size_t>(bytes), 'x');
    if (begins) {
      payload.replace(0, kMessageHeadBytes, MessageHead(/*compressed=*/false, kMessageBytes));
    }
    out_ += Http2Frame(Http2::kData, 0, call->stream, payload);
    call->left -= static_cast<size_t>(bytes);
    call->window -= bytes;
    window_ -= bytes;
    since_said_ += bytes;
    if (since_said_ >= kSaidAfter && window_ >= static_cast<int64_t>(kMessageHeadBytes)) {
      SayWhoCalls();
    }
  }
}

bool HalfMessages::Flush() {
  const ssize_t took = send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (took < 0) return errno == EAGAIN;
  out_.erase(0, static_cast<size_t>(took));
  bytes_ += static_cast<uint64_t>(took);
  return true;
}

bool HalfMessages::Hear() {
  pollfd one = {fd_, static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)), 0};
  poll(&one, 1, 10);
  char some[64 << 10];
  const ssize_t got = recv(fd_, some, sizeof(some), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
  if (got > 0) in_.append(some, static_cast<size_t>(got));
  for (;;) {
    if (in_.size() < kHttp2HeadBytes) return true;
    const size_t bytes = Number(in_, 0, 3);
    if (in_.size() < kHttp2HeadBytes + bytes) return true;
    OnFrame(static_cast<Http2>(in_[3]), static_cast<uint8_t>(in_[4]), Number(in_, 5, 4),
            in_.substr(kHttp2HeadBytes, bytes));
    in_.erase(0, kHttp2HeadBytes + bytes);
  }
}

void HalfMessages::OnFrame(Http2 type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const auto is_call = [&](const Call& call) { return call.stream == stream; };
  switch (type) {
    case Http2::kWindowUpdate: {
      const uint32_t more = Number(payload, 0, 4);
      if (stream == 0) window_ += more;
      const auto call = std::find_if(sending_.begin(), sending_.end(), is_call);
      if (call != sending_.end()) call->window += more;
      return;
    }
    case Http2::kSettings: {
      if ((flags & kAck) != 0) return;
      constexpr uint32_t kInitialWindow = 4;
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (Number(payload, at, 2) != kInitialWindow) continue;
        const int64_t window = Number(payload, at + 2, 4);
        for (Call& call : sending_) call.window += window - first_window_;
        first_window_ = window;
      }
      out_ += Http2Frame(Http2::kSettings, kAck, 0, "");
      return;
    }
    case Http2::kPing:
      if ((flags & kAck) == 0) out_ += Http2Frame(Http2::kPing, kAck, 0, payload);
      return;
    case Http2::kHeaders:
      if ((flags & kEndStream) == 0) return;
      [[fallthrough]];
    case Http2::kReset:
      ended_ += open_.erase(stream);
      return;
    default:
      return;
  }
}

}  // namespace tryst
