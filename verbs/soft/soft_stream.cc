#include "verbs/soft/soft_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

namespace tryst {

void SoftStream::Close() {
  tls_.reset();
  pipe_.reset();
  fd_.Close();
}

ssize_t SoftStream::Send(const iovec* pieces, int count) {
  if (pipe_ != nullptr) return pipe_->Send(pieces, count);
  if (tls_ != nullptr) return tls_->Send(pieces, count);
  return SendNow(fd_.get(), pieces, count);
}

ssize_t SoftStream::Send(const void* bytes, size_t size) {
  const iovec piece = {const_cast<void*>(bytes), size};
  return Send(&piece, 1);
}

ssize_t SoftStream::Receive(const iovec* pieces, int count) {
  if (pipe_ != nullptr) return pipe_->Receive(pieces, count);
  if (tls_ != nullptr) return tls_->Receive(pieces, count);
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t got;
  do {
    got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

ssize_t SoftStream::Receive(void* bytes, size_t size) {
  if (tls_ != nullptr) {
    const iovec piece = {bytes, size};
    return tls_->Receive(&piece, 1);
  }
  return Discard(bytes, size);
}

void SoftStream::EndSending() {
  if (pipe_ != nullptr) return pipe_->EndSending();
  shutdown(fd_.get(), SHUT_WR);
}

ssize_t SoftStream::Discard(void* bytes, size_t size) {
  if (pipe_ != nullptr) {
    const iovec piece = {bytes, size};
    return pipe_->Receive(&piece, 1);
  }
  ssize_t got;
  do {
    got = recv(fd_.get(), bytes, size, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

bool SoftStream::Quiet() {
  if (pipe_ != nullptr) return pipe_->Quiet();
  uint8_t byte;
  return recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

size_t SoftStream::Unsent() const {
  if (pipe_ != nullptr) return pipe_->unsent();
  int left = 0;
  return ioctl(fd_.get(), SIOCOUTQ, &left) == 0 ? static_cast<size_t>(left) : 0;
}

}  // namespace tryst
