// Bare stream sockets, on which everything over TCP is built. tcp, uds; -spin never sleeps.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr int kMostAnswers = 128;

struct Request {
  uint32_t slot;
  char key[kKeyBytes];
};
struct Answer {
  uint64_t slot;
  uint64_t bytes;
};

int OpenSocket(const std::string& variant) {
  const int fd = socket(Has(variant, "uds") ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  if (fd < 0) Die("no socket");
  return fd;
}

void Tune(int fd, const std::string& variant) {
  const int one = 1, buffer = 4 << 20;
  if (Has(variant, "tcp")) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    // The fastest on loopback. BBR, the default of many hosts, paces by timers.
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }
  if (Has(variant, "uds")) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
  }
}

// A stream, with the bytes that it has received and nobody has read.
class Stream {
 public:
  void Open(int fd, bool spin) { fd_ = fd, spin_ = spin; }
  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  size_t held() const { return end_ - begin_; }
  const char* data() const { return buffer_ + begin_; }
  void Use(size_t bytes) { begin_ += bytes; }

  // False: nothing came. Only a poll that does not wait returns it.
  bool Fill(bool may_wait) {
    if (held() > 0) memmove(buffer_, buffer_ + begin_, held());
    end_ -= begin_;
    begin_ = 0;
    const size_t got = Receive(buffer_ + end_, sizeof(buffer_) - end_, may_wait && !spin_);
    end_ += got;
    return got > 0;
  }
  void Exactly(char* into, size_t bytes) {
    while (bytes > 0) {
      const size_t got = Receive(into, bytes, !spin_);
      into += got;
      bytes -= got;
    }
  }
  void Write(iovec* parts, size_t count) {
    while (count > 0) {
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | (spin_ ? MSG_DONTWAIT : 0));
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0) _exit(0);  // The other end has finished.
      size_t left = static_cast<size_t>(sent);
      for (; count > 0 && left >= parts->iov_len; ++parts, --count) left -= parts->iov_len;
      if (count == 0) break;
      parts->iov_base = static_cast<char*>(parts->iov_base) + left;
      parts->iov_len -= left;
    }
  }

 private:
  size_t Receive(char* into, size_t bytes, bool wait) {
    const ssize_t got = recv(fd_, into, bytes, wait ? 0 : MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    _exit(0);
  }

  int fd_ = -1;
  bool spin_ = false;
  size_t begin_ = 0, end_ = 0;
  char buffer_[kBufferBytes];
};

class RawProducer final : public ProducerEnd {
 public:
  RawProducer(const std::string& variant, const std::vector<size_t>& sizes)
      : variant_(variant), table_(sizes), listening_(OpenSocket(variant)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const sa_family_t unix_family =
        AF_UNIX;  // Without a path, the kernel chooses an abstract name.
    const bool bound = Has(variant, "uds")
                           ? bind(listening_, reinterpret_cast<const sockaddr*>(&unix_family),
                                  sizeof(unix_family)) == 0
                           : bind(listening_, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0;
    if (!bound || listen(listening_, 1) != 0) Die("cannot listen");
  }
  Table& table() override { return table_; }
  std::string Address() override {
    sockaddr_storage address;
    socklen_t length = sizeof(address);
    getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &length);
    return std::string(reinterpret_cast<char*>(&address), length);
  }
  void Poll(bool may_wait) override {
    if (!stream_.open()) {
      const int fd = accept(listening_, nullptr, nullptr);
      if (fd < 0) Die("cannot accept");
      Tune(fd, variant_);
      stream_.Open(fd, Has(variant_, "spin"));
    }
    if (!stream_.Fill(may_wait)) return;
    while (stream_.held() >= sizeof(Request)) AnswerSome();
  }

 private:
  void AnswerSome() {
    int count = 0;
    for (; count < kMostAnswers && stream_.held() >= sizeof(Request); ++count) {
      Request request;
      memcpy(&request, stream_.data(), sizeof(request));
      stream_.Use(sizeof(request));
      const Held held = table_.Find(request.key);
      answers_[count] = {request.slot, held.bytes};
      parts_[2 * count] = {&answers_[count], sizeof(Answer)};
      parts_[2 * count + 1] = {const_cast<char*>(held.data), held.bytes};
    }
    stream_.Write(parts_, 2 * count);
  }

  const std::string variant_;
  Table table_;
  const int listening_;
  Stream stream_;
  Answer answers_[kMostAnswers];
  iovec parts_[2 * kMostAnswers];
};

class RawConsumer final : public ConsumerEnd {
 public:
  RawConsumer(const std::string& variant, const ConsumerNeeds& needs)
      : needs_(needs), into_(needs.slots) {
    const int fd = OpenSocket(variant);
    Tune(fd, variant);
    if (connect(fd, reinterpret_cast<const sockaddr*>(needs.address.data()),
                static_cast<socklen_t>(needs.address.size())) != 0) {
      Die("cannot connect");
    }
    stream_.Open(fd, Has(variant, "spin"));
  }
  void Ask(int slot, const std::string& key, char* into, size_t) override {
    Request request;
    request.slot = static_cast<uint32_t>(slot);
    memcpy(request.key, key.data(), kKeyBytes);
    into_[slot] = into;
    asking_.append(reinterpret_cast<char*>(&request), sizeof(request));
  }
  // One system call carries all requests of a turn.
  void Poll(bool may_wait) override {
    Flush();
    if (stream_.held() < sizeof(Answer) && !stream_.Fill(may_wait)) return;
    while (stream_.held() >= sizeof(Answer)) {
      Answer answer;
      memcpy(&answer, stream_.data(), sizeof(answer));
      stream_.Use(sizeof(answer));
      const size_t here = std::min<size_t>(stream_.held(), answer.bytes);
      char* into = into_[answer.slot];
      memcpy(into, stream_.data(), here);
      stream_.Use(here);
      if (here < answer.bytes) {
        Flush();  // So that the producer works while we wait.
        stream_.Exactly(into + here, answer.bytes - here);
      }
      needs_.landed(static_cast<int>(answer.slot), into);
    }
  }

 private:
  void Flush() {
    if (asking_.empty()) return;
    iovec part = {&asking_[0], asking_.size()};
    stream_.Write(&part, 1);
    asking_.clear();
  }

  const ConsumerNeeds needs_;
  std::vector<char*> into_;
  std::string asking_;
  Stream stream_;
};

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::Library library;
  library.produce = [](const std::string& variant, const std::vector<size_t>& sizes) {
    return std::make_unique<tryst::RawProducer>(variant, sizes);
  };
  library.consume = [](const std::string& variant, const tryst::ConsumerNeeds& needs) {
    return std::make_unique<tryst::RawConsumer>(variant, needs);
  };
  return tryst::RunLibrary(argc, argv, library);
}
