#include "tests/attack/wire_tap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tryst {
namespace {

constexpr size_t kTailBytes = 63;  // The longest text that is looked for.
constexpr size_t kMostWaiting = 1 << 20;
// Where a changed connection's bytes begin to be changed: hellos and handshakes have passed.
constexpr uint64_t kOpening = 2048;
constexpr int kSealedAddress = 2;  // A flag of a soft queue pair's address.

sockaddr_in At(const std::string& host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

int Replace(std::string* bytes, const std::string& what, const std::string& with) {
  int times = 0;
  for (size_t at = bytes->find(what); at != std::string::npos; at = bytes->find(what, at + 1)) {
    bytes->replace(at, what.size(), with);
    ++times;
  }
  return times;
}

// Takes the word that it is encrypted out of what opens a connection.
bool Downgrade(std::string* bytes, bool first) {
  int times = Replace(bytes, "rdma/soft-tls", std::string("rdma/soft\0\0\0\0", 13));
  for (size_t at = bytes->find("TRYA"); at != std::string::npos && at + 6 < bytes->size();
       at = bytes->find("TRYA", at + 1)) {
    (*bytes)[at + 6] = 0;
    ++times;
  }
  if (first && (*bytes)[0] == 0x16) {
    times += Replace(bytes, std::string("\x03\x04", 2), std::string("\x03\x03", 2));
  }
  return times > 0;
}

}  // namespace

std::string Markers(size_t count) {
  std::string text;
  text.reserve(count * kMarkerBytes);
  for (uint64_t i = 0; i < count; ++i) {
    text.append(kMarkerTag, 8);
    text.append(reinterpret_cast<const char*>(&i), 8);
  }
  return text;
}

const char* WireEditName(WireEdit edit) {
  static constexpr const char* kNames[] = {"none",    "change",   "replay",
                                           "reorder", "truncate", "downgrade"};
  return kNames[static_cast<int>(edit)];
}

WireTap::WireTap(const std::string& here, const std::string& worker, const std::vector<int>& ports)
    : worker_(worker), random_(1) {
  for (int port : ports) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const sockaddr_in at = At(here, port);
    listens_ &=
        bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 && listen(fd, 64) == 0;
    listeners_.push_back({fd, port});
  }
  listens_ &= pipe2(wake_, O_NONBLOCK | O_CLOEXEC) == 0;
  thread_ = std::thread([this] { Run(); });
}

WireTap::~WireTap() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  [[maybe_unused]] const ssize_t woken = write(wake_[1], "x", 1);
  thread_.join();
  for (const Listener& listener : listeners_) close(listener.fd);
  MutexLock lock(&mu_);
  for (Connection& connection : connections_) {
    for (Side& side : connection.side) close(side.fd);
  }
  close(wake_[0]);
  close(wake_[1]);
}

uint64_t WireTap::markers() const {
  MutexLock lock(&mu_);
  return markers_.size();
}

uint64_t WireTap::hellos() const {
  MutexLock lock(&mu_);
  return hellos_;
}

uint64_t WireTap::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

void WireTap::Edit(WireEdit edit, int port, int times) {
  MutexLock lock(&mu_);
  edit_ = edit;
  edit_port_ = port;
  edits_left_ = times;
  edits_ = 0;
  for (Connection& connection : connections_) connection.edited = false;
}

int WireTap::edits() const {
  MutexLock lock(&mu_);
  return edits_;
}

int WireTap::edited_open() const {
  MutexLock lock(&mu_);
  return static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                        [](const Connection& one) { return one.edited; }));
}

void WireTap::Run() {
  for (;;) {
    std::vector<pollfd> waits = {{wake_[0], POLLIN, 0}};
    for (const Listener& listener : listeners_) waits.push_back({listener.fd, POLLIN, 0});
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      for (Connection& connection : connections_) {
        for (int i : {0, 1}) {
          const bool reads = connection.side[1 - i].waits.size() < kMostWaiting;
          const bool writes = !connection.side[i].waits.empty();
          waits.push_back({connection.side[i].fd,
                           static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
        }
      }
    }
    poll(waits.data(), waits.size(), 1000);
    MutexLock lock(&mu_);
    size_t next = 1 + listeners_.size();
    for (Connection& connection : connections_) {
      for (int i : {0, 1}) {
        const short is = waits[next++].revents;
        if ((is & POLLOUT) != 0) Write(&connection, i);
        if ((is & (POLLIN | POLLHUP | POLLERR)) != 0) Forward(&connection, i);
      }
    }
    connections_.remove_if([](const Connection& one) {
      if (one.ended) {
        for (const Side& side : one.side) close(side.fd);
      }
      return one.ended;
    });
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (waits[1 + i].revents != 0) Accept(listeners_[i]);
    }
  }
}

void WireTap::Accept(const Listener& listener) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  const int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in at = At(worker_, listener.port);
  if (connect(to, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
    close(to);
    close(fd);
    return;
  }
  fcntl(to, F_SETFL, O_NONBLOCK);
  connections_.emplace_back();
  connections_.back().port = listener.port;
  connections_.back().side[0].fd = fd;
  connections_.back().side[1].fd = to;
}

void WireTap::Forward(Connection* connection, int from) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Side& side = connection->side[from];
  char some[64 << 10];
  const ssize_t got = recv(side.fd, some, sizeof(some), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    // The other end hears of it once it has what was read before.
    connection->ended = true;
    Write(connection, 1 - from);
    return;
  }
  std::string bytes(some, static_cast<size_t>(got));
  Look(&side, bytes);
  const bool first = side.read == 0;
  side.read += bytes.size();
  bytes_ += bytes.size();
  bool cut = false;
  if (edits_left_ > 0 && connection->port == edit_port_ && !connection->edited &&
      (side.read > kOpening || edit_ == WireEdit::kDowngrade)) {
    Change(connection, &bytes, first, &cut);
  }
  connection->side[1 - from].waits += bytes;
  Write(connection, 1 - from);
  connection->ended |= cut;
}

void WireTap::Change(Connection* connection, std::string* bytes, bool first,
                     bool* cut) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const size_t size = bytes->size();
  if (edit_ != WireEdit::kDowngrade && size < 4096) return;
  switch (edit_) {
    case WireEdit::kNone:
      return;
    case WireEdit::kChange:
      for (size_t i = 0, at = random_() % (size - 16); i < 16; ++i) (*bytes)[at + i] ^= 0x5a;
      break;
    case WireEdit::kReplay:
      bytes->append(bytes->substr(size / 2));
      break;
    case WireEdit::kReorder:
      *bytes = bytes->substr(size / 2) + bytes->substr(0, size / 2);
      break;
    case WireEdit::kTruncate:
      bytes->resize(size / 2);
      *cut = true;
      break;
    case WireEdit::kDowngrade:
      if (!Downgrade(bytes, first)) return;
      break;
  }
  connection->edited = true;
  --edits_left_;
  ++edits_;
}

void WireTap::Write(Connection* connection, int to) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Side& side = connection->side[to];
  while (!side.waits.empty()) {
    const ssize_t sent =
        send(side.fd, side.waits.data(), side.waits.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent <= 0) {
      connection->ended = true;
      return;
    }
    side.waits.erase(0, static_cast<size_t>(sent));
  }
}

// Finds what it can read, also where that lies across two reads.
void WireTap::Look(Side* side, const std::string& bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const std::string text = side->tail + bytes;
  // A match that lies in the tail as a whole was seen before.
  const size_t seen = side->tail.size();
  const std::string tag(kMarkerTag, 8);
  for (size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, at + 8)) {
    if (at + kMarkerBytes > text.size()) break;
    uint64_t number;
    memcpy(&number, text.data() + at + 8, 8);
    markers_.insert(number);
  }
  for (const char* hello : {"TRYA", "TRYH"}) {
    for (size_t at = text.find(hello); at != std::string::npos; at = text.find(hello, at + 4)) {
      if (at + 28 > text.size() || at + 28 <= seen) continue;
      const bool sealed = hello[3] == 'A' && (text[at + 6] & kSealedAddress) != 0;
      if (text[at + 4] == 1 && !sealed) ++hellos_;
    }
  }
  side->tail = text.substr(text.size() - std::min(text.size(), kTailBytes));
}

}  // namespace tryst
