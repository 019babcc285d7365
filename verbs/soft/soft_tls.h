#ifndef TRYST_VERBS_SOFT_SOFT_TLS_H_
#define TRYST_VERBS_SOFT_SOFT_TLS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "verbs/soft/handshake.h"

struct bio_method_st;
struct ssl_ctx_st;
struct ssl_st;

namespace tryst {

// The TLS of one connection, over a descriptor that its SoftStream owns. Used by one thread.
class SoftTlsSession {
 public:
  ~SoftTlsSession();

  ssize_t Send(const iovec* pieces, int count);
  ssize_t Receive(const iovec* pieces, int count);
  bool HoldsBytes() const;
  bool WaitsForPeer() const { return waits_for_peer_; }

  // The token of the queue pair that a caller names; nothing: there is no such queue pair.
  using FindToken = std::function<absl::optional<Token>(uint32_t number)>;

 private:
  friend class SoftTls;
  explicit SoftTlsSession(ssl_st* ssl) : ssl_(ssl) {}
  ssize_t Finish(int result, size_t done);

  static unsigned ServerKey(ssl_st* ssl, const char* identity, unsigned char* key, unsigned max);
  static unsigned ClientKey(ssl_st* ssl, const char* hint, char* identity, unsigned max_identity,
                            unsigned char* key, unsigned max);

  ssl_st* const ssl_;
  FindToken find_token_;  // Used by the acceptor.
  uint32_t number_ = 0;   // Used by the dialler: the queue pair that it wants, and its token.
  Token token_ = {};
  bool waits_for_peer_ = false;
};

// TLS 1.3 between two sides that share a queue pair's token. The token is the pre-shared key, so it
// never crosses the wire, and neither side needs a certificate. Thread-safe.
class SoftTls {
 public:
  static absl::StatusOr<std::unique_ptr<SoftTls>> Create();
  ~SoftTls();

  // Null: OpenSSL is out of memory. `fd` outlives the session.
  std::unique_ptr<SoftTlsSession> Dial(int fd, uint32_t number, const Token& token);
  std::unique_ptr<SoftTlsSession> Accept(int fd, SoftTlsSession::FindToken find_token);

 private:
  SoftTls() = default;
  std::unique_ptr<SoftTlsSession> Start(int fd);

  ssl_ctx_st* context_ = nullptr;
  bio_method_st* socket_ = nullptr;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_TLS_H_
