#include "verbs/soft/soft_tls.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tryst {
namespace {

constexpr size_t kIdentityBytes = 16;  // Eight hexadecimal digits and a zero.
// A handshake without certificates has some hundred, so who sends more is no peer of ours.
constexpr size_t kMostHandshakeBytes = 8 << 10;

long ControlSocket(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP ? 1 : 0;
}

SoftTlsSession* SessionOf(const BIO* bio) {
  return static_cast<SoftTlsSession*>(BIO_get_data(const_cast<BIO*>(bio)));
}

}  // namespace

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL, but a peer that has gone must not cause a
// signal in this process.
int SoftTlsSession::WriteToSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      send(SessionOf(bio)->fd_, bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int SoftTlsSession::ReadFromSocket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  SoftTlsSession* const self = SessionOf(bio);
  if (self->heard_ + static_cast<size_t>(size) > kMostHandshakeBytes) return -1;
  const ssize_t got = recv(self->fd_, bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got > 0) self->heard_ += static_cast<size_t>(got);
  return static_cast<int>(got);
}

absl::StatusOr<std::unique_ptr<SoftTls>> SoftTls::Create() {
  std::unique_ptr<SoftTls> tls(new SoftTls);
  tls->context_ = SSL_CTX_new(TLS_method());
  tls->socket_ = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tryst socket");
  if (tls->context_ == nullptr || tls->socket_ == nullptr ||
      SSL_CTX_set_min_proto_version(tls->context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(tls->context_, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(tls->context_, 0) != 1) {
    return absl::InternalError(
        "this OpenSSL lacks TLS 1.3 with AES-128-GCM, which the soft NIC encrypts with: install "
        "another, or set encrypt=off");
  }
  BIO_meth_set_write(tls->socket_, &SoftTlsSession::WriteToSocket);
  BIO_meth_set_read(tls->socket_, &SoftTlsSession::ReadFromSocket);
  BIO_meth_set_ctrl(tls->socket_, ControlSocket);
  SSL_CTX_set_session_cache_mode(tls->context_, SSL_SESS_CACHE_OFF);
  // No record may follow the handshake's but ours.
  SSL_CTX_clear_options(tls->context_, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_psk_server_callback(tls->context_, &SoftTlsSession::ServerKey);
  SSL_CTX_set_psk_client_callback(tls->context_, &SoftTlsSession::ClientKey);
  SSL_CTX_set_keylog_callback(tls->context_, &SoftTlsSession::TakeSecret);
  return tls;
}

SoftTls::~SoftTls() {
  SSL_CTX_free(context_);
  BIO_meth_free(socket_);
}

std::unique_ptr<SoftTlsSession> SoftTls::Start(int fd, bool dials) {
  SSL* const ssl = SSL_new(context_);
  BIO* const bio = ssl != nullptr ? BIO_new(socket_) : nullptr;
  if (bio == nullptr) {
    SSL_free(ssl);
    return nullptr;
  }
  std::unique_ptr<SoftTlsSession> session(new SoftTlsSession(this, ssl, fd, dials));
  BIO_set_data(bio, session.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, session.get());
  return session;
}

std::unique_ptr<SoftTlsSession> SoftTls::Dial(int fd, uint32_t number, const Token& token) {
  std::unique_ptr<SoftTlsSession> session = Start(fd, true);
  if (session == nullptr) return nullptr;
  session->number_ = number;
  session->token_ = token;
  // Whoever answers without the token may show a certificate instead, and no certificate counts.
  SSL_set_verify(session->ssl_, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 0; });
  SSL_set_connect_state(session->ssl_);
  return session;
}

std::unique_ptr<SoftTlsSession> SoftTls::Accept(int fd, SoftTlsSession::FindToken find_token) {
  std::unique_ptr<SoftTlsSession> session = Start(fd, false);
  if (session == nullptr) return nullptr;
  session->find_token_ = std::move(find_token);
  SSL_set_accept_state(session->ssl_);
  return session;
}

SoftTlsSession::SoftTlsSession(SoftTls* tls, SSL* ssl, int fd, bool dials)
    : tls_(tls), ssl_(ssl), fd_(fd), dials_(dials) {}

SoftTlsSession::~SoftTlsSession() {
  SSL_free(ssl_);
  OPENSSL_cleanse(token_.data(), token_.size());
  OPENSSL_cleanse(dialler_secret_.data(), dialler_secret_.size());
  OPENSSL_cleanse(acceptor_secret_.data(), acceptor_secret_.size());
}

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

// OpenSSL tells the secrets that were agreed as lines "NAME RANDOM SECRET", for the logs of those
// who debug TLS. It has no other way to tell them.
void SoftTlsSession::TakeSecret(const SSL* ssl, const char* line) {
  auto* const self = static_cast<SoftTlsSession*>(SSL_get_app_data(ssl));
  const absl::string_view text = line;
  SoftTrafficSecret* const into =
      absl::StartsWith(text, "CLIENT_TRAFFIC_SECRET_0 ")   ? &self->dialler_secret_
      : absl::StartsWith(text, "SERVER_TRAFFIC_SECRET_0 ") ? &self->acceptor_secret_
                                                           : nullptr;
  if (into == nullptr) return;
  std::string secret = absl::HexStringToBytes(text.substr(text.rfind(' ') + 1));
  if (secret.size() == into->size()) std::copy(secret.begin(), secret.end(), into->begin());
  OPENSSL_cleanse(secret.data(), secret.size());
}

bool SoftTlsSession::Handshake() {
  if (writer_.has_value()) return true;
  if (ssl_ == nullptr) {
    errno = EPROTO;
    return false;
  }
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  const int reason = SSL_get_error(ssl_, result);
  waits_for_peer_ = reason == SSL_ERROR_WANT_READ;
  if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
    return false;
  }
  // "Reused" is what OpenSSL calls a session that began with a pre-shared key.
  const bool agreed = result == 1 && SSL_session_reused(ssl_) == 1 &&
                      dialler_secret_ != SoftTrafficSecret() &&
                      acceptor_secret_ != SoftTrafficSecret();
  if (agreed) UseSecrets();
  ERR_clear_error();
  SSL_free(ssl_);
  ssl_ = nullptr;
  if (!agreed) errno = EPROTO;
  return agreed;
}

void SoftTlsSession::UseSecrets() {
  writer_.emplace(dials_ ? dialler_secret_ : acceptor_secret_, &tls_->blocks_);
  reader_.emplace(dials_ ? acceptor_secret_ : dialler_secret_, &tls_->blocks_);
  OPENSSL_cleanse(dialler_secret_.data(), dialler_secret_.size());
  OPENSSL_cleanse(acceptor_secret_.data(), acceptor_secret_.size());
  if (!tls_->try_kernel_.load(std::memory_order_relaxed)) return;
  kernel_sends_ = KernelSends(fd_, writer_->keys());
  // A kernel without TLS would look for the module again for each connection.
  if (!kernel_sends_) tls_->try_kernel_.store(false, std::memory_order_relaxed);
}

ssize_t SoftTlsSession::Send(const iovec* pieces, int count) {
  if (!Handshake()) return -1;
  waits_for_peer_ = false;
  return kernel_sends_ ? kernel_.Send(fd_, pieces, count) : writer_->Send(fd_, pieces, count);
}

ssize_t SoftTlsSession::Receive(const iovec* pieces, int count) {
  if (!Handshake()) return -1;
  return reader_->Receive(fd_, pieces, count);
}

}  // namespace tryst
