#include "tests/process/faults/socket_bootstrap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr int kConnectMs = 300;
constexpr int kRequestMs = 300;
constexpr int kAnswerMs = 5000;
constexpr uint32_t kMaxBytes = 1 << 20;

sockaddr_in AddressOf(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  int port = 0;
  TRYST_CHECK(parts.size() == 2 && absl::SimpleAtoi(parts[1], &port) &&
              inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr) == 1)
      << text;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool WaitFor(int socket, short events, int timeout_ms) {  // NOLINT: as poll(2) has it.
  pollfd wanted{socket, events, 0};
  return poll(&wanted, 1, timeout_ms) == 1;
}

void SetBlocking(int socket, bool blocking) {
  const int flags = fcntl(socket, F_GETFL, 0);
  fcntl(socket, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

bool SendFrame(int socket, const std::string& body) {
  const uint32_t bytes = static_cast<uint32_t>(body.size());
  std::string frame(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  frame += body;
  return send(socket, frame.data(), frame.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(frame.size());
}

bool ReceiveAll(int socket, void* into, size_t bytes, int timeout_ms) {
  char* at = static_cast<char*>(into);
  while (bytes > 0) {
    if (!WaitFor(socket, POLLIN, timeout_ms)) return false;
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool ReceiveFrame(int socket, std::string* body, int timeout_ms) {
  uint32_t bytes = 0;
  if (!ReceiveAll(socket, &bytes, sizeof(bytes), timeout_ms) || bytes > kMaxBytes) return false;
  body->resize(bytes);
  return ReceiveAll(socket, &(*body)[0], bytes, timeout_ms);
}

// Packs numbers in host order, and strings with their lengths. Both ends run on the same host.
class Packer {
 public:
  void Number(uint64_t value) { text.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void Text(const std::string& value) {
    Number(value.size());
    text += value;
  }
  std::string text;
};
class Unpacker {
 public:
  explicit Unpacker(absl::string_view text) : text_(text) {}
  uint64_t Number() {
    uint64_t value = 0;
    if (text_.size() < sizeof(value)) return 0;
    memcpy(&value, text_.data(), sizeof(value));
    text_.remove_prefix(sizeof(value));
    return value;
  }
  std::string Text() {
    const uint64_t bytes = Number();
    const std::string value(text_.substr(0, bytes));
    text_.remove_prefix(value.size());
    return value;
  }

 private:
  absl::string_view text_;
};

std::string Pack(const Hello& hello) {
  Packer packer;
  packer.Text(hello.worker);
  packer.Number(hello.incarnation);
  packer.Number(hello.epoch);
  packer.Text(hello.path);
  packer.Text(hello.parameters);
  packer.Number(hello.queue_pairs.size());
  for (const std::string& pair : hello.queue_pairs) packer.Text(pair);
  return packer.text;
}

Hello Unpack(Unpacker* unpacker) {
  Hello hello;
  hello.worker = unpacker->Text();
  hello.incarnation = unpacker->Number();
  hello.epoch = unpacker->Number();
  hello.path = unpacker->Text();
  hello.parameters = unpacker->Text();
  for (uint64_t pairs = unpacker->Number(); pairs > 0; --pairs) {
    hello.queue_pairs.push_back(unpacker->Text());
  }
  return hello;
}

// Sends one request and returns its answer.
absl::StatusOr<std::string> Ask(const std::string& peer, const std::string& request,
                                int answer_ms) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SetBlocking(fd, false);
  const sockaddr_in address = AddressOf(peer);
  int rc = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (rc != 0 && errno == EINPROGRESS && WaitFor(fd, POLLOUT, kConnectMs)) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    rc = error == 0 ? 0 : -1;
  }
  std::string answer;
  if (rc == 0) {
    SetBlocking(fd, true);
    if (!SendFrame(fd, request) || !ReceiveFrame(fd, &answer, answer_ms)) rc = -1;
  }
  close(fd);
  if (rc != 0) return absl::UnavailableError(absl::StrCat(peer, " does not answer"));
  return answer;
}

}  // namespace

SocketBootstrap::SocketBootstrap(const std::string& listen_at, std::string peer,
                                 uint64_t incarnation)
    : peer_(std::move(peer)), incarnation_(incarnation) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const sockaddr_in address = AddressOf(listen_at);
  TRYST_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
              listen(listener_, 16) == 0)
      << "cannot listen on " << listen_at << ": " << strerror(errno);
}

SocketBootstrap::~SocketBootstrap() {
  Stop();
  close(listener_);
}

void SocketBootstrap::Start(HelloHandler* handler) {
  handler_ = handler;
  server_ = std::thread([this] { Serve(); });
  client_ = std::thread([this] { CarryOut(); });
}

void SocketBootstrap::Stop() {
  if (stopping_.exchange(true)) return;
  {
    MutexLock lock(&mu_);
    more_.NotifyAll();
  }
  if (server_.joinable()) server_.join();
  if (client_.joinable()) client_.join();
}

void SocketBootstrap::Serve() {
  while (!stopping_.load()) {
    if (!WaitFor(listener_, POLLIN, 50)) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) Answer(fd);
  }
}

void SocketBootstrap::Answer(int socket) {
  std::string request;
  if (!ReceiveFrame(socket, &request, kRequestMs) || request.empty()) {
    close(socket);
    return;
  }
  if (request[0] == 'I') {
    Packer packer;
    packer.Number(incarnation_);
    SendFrame(socket, packer.text);
    close(socket);
    return;
  }
  Unpacker unpacker(absl::string_view(request).substr(1));
  handler_->OnHello(Unpack(&unpacker), [socket](absl::StatusOr<Hello> answer) {
    Packer packer;
    packer.Number(static_cast<uint64_t>(answer.status().code()));
    if (answer.ok()) {
      packer.text += Pack(*answer);
    } else {
      packer.Text(std::string(answer.status().message()));
    }
    SendFrame(socket, packer.text);
    close(socket);
  });
}

void SocketBootstrap::Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) {
  MutexLock lock(&mu_);
  jobs_.push_back({hello, std::move(done)});
  more_.NotifyAll();
}

void SocketBootstrap::CarryOut() {
  for (;;) {
    Job job;
    {
      MutexLock lock(&mu_);
      while (jobs_.empty() && !stopping_.load()) more_.Wait(&mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    absl::StatusOr<std::string> answer = absl::UnavailableError("stopping");
    if (!stopping_.load()) answer = Ask(peer_, absl::StrCat("H", Pack(job.hello)), kAnswerMs);
    if (!answer.ok()) {
      std::move(job.done)(answer.status());
      continue;
    }
    Unpacker unpacker(*answer);
    const auto code = static_cast<absl::StatusCode>(unpacker.Number());
    if (code == absl::StatusCode::kOk) {
      std::move(job.done)(Unpack(&unpacker));
    } else {
      std::move(job.done)(absl::Status(code, unpacker.Text()));
    }
  }
}

absl::StatusOr<uint64_t> SocketBootstrap::AskIncarnation() {
  const absl::StatusOr<std::string> answer = Ask(peer_, "I", kRequestMs);
  if (!answer.ok()) return answer.status();
  return Unpacker(*answer).Number();
}

}  // namespace tryst
