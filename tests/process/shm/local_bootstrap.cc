#include "tests/process/shm/local_bootstrap.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

namespace tryst {
namespace {

socklen_t Address(const std::string& name, sockaddr_un* address) {
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, name.data(), std::min(name.size(), sizeof(address->sun_path) - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void PutText(const std::string& text, std::string* out) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(text);
}

std::string TakeText(std::string* in) {
  uint32_t size = 0;
  if (in->size() < sizeof(size)) return "";
  memcpy(&size, in->data(), sizeof(size));
  std::string text = in->substr(sizeof(size), size);
  in->erase(0, sizeof(size) + text.size());
  return text;
}

std::string Pack(const Hello& hello) {
  std::string out;
  PutText(hello.worker, &out);
  PutText(std::to_string(hello.incarnation), &out);
  PutText(std::to_string(hello.epoch), &out);
  PutText(hello.path, &out);
  PutText(hello.parameters, &out);
  return out;
}

Hello Unpack(std::string in) {
  Hello hello;
  hello.worker = TakeText(&in);
  hello.incarnation = strtoull(TakeText(&in).c_str(), nullptr, 10);
  hello.epoch = strtoull(TakeText(&in).c_str(), nullptr, 10);
  hello.path = TakeText(&in);
  hello.parameters = TakeText(&in);
  return hello;
}

std::string ReadAll(int fd) {
  char buffer[4096];
  const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
  return std::string(buffer, got > 0 ? static_cast<size_t>(got) : 0);
}

}  // namespace

bool LocalBootstrap::Serve(const std::string& name, HelloHandler* handler) {
  sockaddr_un address;
  const socklen_t length = Address(name, &address);
  listen_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listen_fd_, 16) != 0) {
    return false;
  }
  thread_ = std::thread([this, handler] { Loop(handler); });
  return true;
}

void LocalBootstrap::Stop() {
  stopping_.store(true);
  std::vector<std::thread> exchanges;
  {
    MutexLock lock(&mu_);
    exchanges.swap(exchanges_);
  }
  if (listen_fd_ >= 0) shutdown(listen_fd_, SHUT_RDWR);  // Ends the wait in Loop().
  for (std::thread& exchange : exchanges) exchange.join();
  if (thread_.joinable()) thread_.join();
  if (listen_fd_ >= 0) close(listen_fd_);
  listen_fd_ = -1;
}

void LocalBootstrap::Loop(HelloHandler* handler) {
  while (!stopping_.load()) {
    pollfd wait{listen_fd_, POLLIN, 0};
    if (poll(&wait, 1, 20) != 1) continue;
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const timeval limit{2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    const std::string asked = ReadAll(fd);
    if (asked.empty()) {
      close(fd);
      continue;
    }
    // The answer is sent on the handler's thread, which gets the descriptor.
    handler->OnHello(Unpack(asked), [fd](absl::StatusOr<Hello> answer) {
      std::string out(1, static_cast<char>(answer.status().code()));
      out += answer.ok() ? Pack(*answer) : std::string(answer.status().message());
      send(fd, out.data(), out.size(), MSG_NOSIGNAL);
      close(fd);
    });
  }
}

void LocalBootstrap::Exchange(const std::string& peer, const Hello& hello, Deadline,
                              HelloDone done) {
  // A thread for each hello, so that a stopped peer delays nobody; that is good enough for tests.
  MutexLock lock(&mu_);
  exchanges_.emplace_back([peer, hello, done = std::move(done)]() mutable {
    sockaddr_un address;
    const socklen_t length = Address(peer, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const timeval limit{2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    absl::StatusOr<Hello> answer = absl::UnavailableError("the peer is not up");
    const std::string asked = Pack(hello);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        send(fd, asked.data(), asked.size(), MSG_NOSIGNAL) > 0) {
      const std::string text = ReadAll(fd);
      if (!text.empty() && text[0] == 0) {
        answer = Unpack(text.substr(1));
      } else if (!text.empty()) {
        answer = absl::Status(static_cast<absl::StatusCode>(text[0]), text.substr(1));
      }
    }
    close(fd);
    std::move(done)(std::move(answer));
  });
}

}  // namespace tryst
