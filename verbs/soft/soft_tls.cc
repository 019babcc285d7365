#include "verbs/soft/soft_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"

namespace tryst {
namespace {

constexpr size_t kRecordBytes = 16 << 10;  // The largest record of TLS.
constexpr size_t kIdentityBytes = 16;      // Eight hexadecimal digits and a zero.

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL, but a peer that has gone must not cause a
// signal in this process.
int WriteToSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
  const ssize_t sent = send(fd, bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadFromSocket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
  const ssize_t got = recv(fd, bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long ControlSocket(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP ? 1 : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SoftTls>> SoftTls::Create() {
  std::unique_ptr<SoftTls> tls(new SoftTls);
  tls->context_ = SSL_CTX_new(TLS_method());
  tls->socket_ = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tryst socket");
  if (tls->context_ == nullptr || tls->socket_ == nullptr ||
      SSL_CTX_set_min_proto_version(tls->context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(tls->context_, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(tls->context_, 0) != 1) {
    return absl::InternalError("OpenSSL has no TLS 1.3 with AES-128-GCM");
  }
  BIO_meth_set_write(tls->socket_, WriteToSocket);
  BIO_meth_set_read(tls->socket_, ReadFromSocket);
  BIO_meth_set_ctrl(tls->socket_, ControlSocket);
  SSL_CTX_set_session_cache_mode(tls->context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(tls->context_, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_psk_server_callback(tls->context_, &SoftTlsSession::ServerKey);
  SSL_CTX_set_psk_client_callback(tls->context_, &SoftTlsSession::ClientKey);
  return tls;
}

SoftTls::~SoftTls() {
  SSL_CTX_free(context_);
  BIO_meth_free(socket_);
}

std::unique_ptr<SoftTlsSession> SoftTls::Start(int fd) {
  SSL* const ssl = SSL_new(context_);
  BIO* const bio = ssl != nullptr ? BIO_new(socket_) : nullptr;
  if (bio == nullptr) {
    SSL_free(ssl);
    return nullptr;
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  std::unique_ptr<SoftTlsSession> session(new SoftTlsSession(ssl));
  SSL_set_app_data(ssl, session.get());
  return session;
}

std::unique_ptr<SoftTlsSession> SoftTls::Dial(int fd, uint32_t number, const Token& token) {
  std::unique_ptr<SoftTlsSession> session = Start(fd);
  if (session == nullptr) return nullptr;
  session->number_ = number;
  session->token_ = token;
  SSL_set_connect_state(session->ssl_);
  return session;
}

std::unique_ptr<SoftTlsSession> SoftTls::Accept(int fd, SoftTlsSession::FindToken find_token) {
  std::unique_ptr<SoftTlsSession> session = Start(fd);
  if (session == nullptr) return nullptr;
  session->find_token_ = std::move(find_token);
  SSL_set_accept_state(session->ssl_);
  return session;
}

SoftTlsSession::~SoftTlsSession() { SSL_free(ssl_); }

unsigned SoftTlsSession::ServerKey(SSL* ssl, const char* identity, unsigned char* key,
                                   unsigned max) {
  const auto* const self = static_cast<SoftTlsSession*>(SSL_get_app_data(ssl));
  if (self->find_token_ == nullptr || identity == nullptr || max < sizeof(Token)) return 0;
  char* end = nullptr;
  const unsigned long number = strtoul(identity, &end, 16);
  if (*end != '\0' || number > 0xffffffff) return 0;
  const absl::optional<Token> token = self->find_token_(static_cast<uint32_t>(number));
  if (!token.has_value()) return 0;
  memcpy(key, token->data(), token->size());
  return static_cast<unsigned>(token->size());
}

unsigned SoftTlsSession::ClientKey(SSL* ssl, const char*, char* identity, unsigned max_identity,
                                   unsigned char* key, unsigned max) {
  const auto* const self = static_cast<SoftTlsSession*>(SSL_get_app_data(ssl));
  if (max_identity < kIdentityBytes || max < self->token_.size()) return 0;
  snprintf(identity, kIdentityBytes, "%08x", self->number_);
  memcpy(key, self->token_.data(), self->token_.size());
  return static_cast<unsigned>(self->token_.size());
}

// What to return after OpenSSL returned `result` and `done` bytes had been moved before.
ssize_t SoftTlsSession::Finish(int result, size_t done) {
  const int reason = SSL_get_error(ssl_, result);
  waits_for_peer_ = reason == SSL_ERROR_WANT_READ;
  if (done > 0) return static_cast<ssize_t>(done);
  if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
    return -1;
  }
  if (reason == SSL_ERROR_ZERO_RETURN) return 0;
  errno = EPROTO;
  return -1;
}

ssize_t SoftTlsSession::Send(const iovec* pieces, int count) {
  ERR_clear_error();
  size_t done = 0;
  size_t offset = 0;  // In the first remaining part.
  while (count > 0) {
    // Small parts share a record, as they would share a segment.
    uint8_t record[kRecordBytes];
    size_t filled = 0;
    for (int i = 0; i < count && filled < kRecordBytes; ++i) {
      const size_t skip = i == 0 ? offset : 0;
      const size_t take = std::min(pieces[i].iov_len - skip, kRecordBytes - filled);
      memcpy(record + filled, static_cast<const uint8_t*>(pieces[i].iov_base) + skip, take);
      filled += take;
    }
    if (filled == 0) break;
    const int written = SSL_write(ssl_, record, static_cast<int>(filled));
    if (written <= 0) return Finish(written, done);
    done += static_cast<size_t>(written);
    offset += static_cast<size_t>(written);
    while (count > 0 && offset >= pieces->iov_len) {
      offset -= pieces->iov_len;
      ++pieces;
      --count;
    }
  }
  waits_for_peer_ = false;
  return static_cast<ssize_t>(done);
}

ssize_t SoftTlsSession::Receive(const iovec* pieces, int count) {
  ERR_clear_error();
  size_t done = 0;
  for (int i = 0; i < count; ++i) {
    size_t filled = 0;
    while (filled < pieces[i].iov_len) {
      const int got = SSL_read(ssl_, static_cast<uint8_t*>(pieces[i].iov_base) + filled,
                               static_cast<int>(pieces[i].iov_len - filled));
      if (got <= 0) return Finish(got, done);
      filled += static_cast<size_t>(got);
      done += static_cast<size_t>(got);
    }
  }
  return static_cast<ssize_t>(done);
}

bool SoftTlsSession::HoldsBytes() const { return SSL_has_pending(ssl_) == 1; }

}  // namespace tryst
