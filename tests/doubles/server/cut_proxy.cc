#include "tests/doubles/server/cut_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"

namespace tryst {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

struct CutProxy::Pair {
  int client = -1;
  int target = -1;
  std::atomic<int64_t> back{0};
  void Cut() {
    shutdown(client, SHUT_RDWR);
    shutdown(target, SHUT_RDWR);
  }
  ~Pair() {
    close(client);
    close(target);
  }
};

CutProxy::CutProxy(int target_port) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  TRYST_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  TRYST_CHECK(listen(listener_, 64) == 0);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

CutProxy::~CutProxy() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  CutNow();
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mu_);
    threads.swap(threads_);
  }
  for (auto& thread : threads) thread.join();
}

std::string CutProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void CutProxy::CutNow() {
  MutexLock lock(&mu_);
  for (auto& pair : pairs_) pair->Cut();
  pairs_.clear();
}

void CutProxy::Accept() {
  for (;;) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    auto pair = std::make_shared<Pair>();
    pair->client = client;
    pair->target = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(target_port_);
    if (refuse_.load() ||
        connect(pair->target, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      continue;
    }
    connections_.fetch_add(1);
    MutexLock lock(&mu_);
    pairs_.push_back(pair);
    threads_.emplace_back([this, pair] { Forward(pair, false); });
    threads_.emplace_back([this, pair] { Forward(pair, true); });
  }
}

void CutProxy::Damage(char* bytes, size_t count) {
  constexpr size_t kRun = 64;
  const std::string run(kRun, '\xd5');
  const absl::string_view text(bytes, count);
  const size_t at = text.find(run);
  if (at == absl::string_view::npos || damage_runs_.fetch_sub(1) <= 0) return;
  bytes[at + kRun / 2] ^= 0x10;
  damaged_.fetch_add(1);
}

void CutProxy::Forward(const std::shared_ptr<Pair>& pair, bool back) {
  char buffer[16384];
  const int from = back ? pair->target : pair->client;
  const int to = back ? pair->client : pair->target;
  for (;;) {
    const ssize_t got = recv(from, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    if (swallows_.load()) continue;
    if (back) {
      bytes_back_.fetch_add(got);
      if (damage_runs_.load() > 0) Damage(buffer, static_cast<size_t>(got));
      const int64_t limit = cut_after_bytes_.load();
      if (limit >= 0 && pair->back.fetch_add(got) + got > limit) break;
    }
    for (ssize_t at = 0; at < got;) {
      const ssize_t put = send(to, buffer + at, static_cast<size_t>(got - at), MSG_NOSIGNAL);
      if (put <= 0) return pair->Cut();
      at += put;
    }
  }
  pair->Cut();
}

}  // namespace tryst
