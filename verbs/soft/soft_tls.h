#ifndef TRYST_VERBS_SOFT_SOFT_TLS_H_
#define TRYST_VERBS_SOFT_SOFT_TLS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "verbs/soft/handshake.h"
#include "verbs/soft/soft_blocks.h"
#include "verbs/soft/soft_kernel_tls.h"
#include "verbs/soft/soft_records.h"

struct bio_st;
struct bio_method_st;
struct ssl_ctx_st;
struct ssl_st;

namespace tryst {

// The TLS of one connection, over a descriptor that its SoftStream owns. OpenSSL makes the
// handshake, inside the first calls; then the two directions share nothing, and one thread may send
// while another receives.
class SoftTlsSession {
 public:
  ~SoftTlsSession();

  // As sendmsg(2) and recvmsg(2). EPROTO: the peer, or somebody between, has sent what cannot be.
  // Bytes count as sent once they are encrypted.
  ssize_t Send(const iovec* pieces, int count);
  ssize_t Receive(const iovec* pieces, int count);
  // The socket did not take all that was sent: Send() goes on with it, also with no pieces.
  bool HasUnsent() const { return writer_.has_value() && writer_->has_unsent(); }
  // Receive() has bytes that the descriptor does not show.
  bool HoldsBytes() const { return reader_.has_value() && reader_->HoldsBytes(); }
  bool WaitsForPeer() const { return waits_for_peer_; }
  bool kernel_sends() const { return kernel_sends_; }

  // The token of the queue pair that a caller names; nothing: there is no such queue pair.
  using FindToken = std::function<absl::optional<Token>(uint32_t number)>;

 private:
  friend class SoftTls;
  SoftTlsSession(class SoftTls* tls, ssl_st* ssl, int fd, bool dials);
  bool Handshake();  // False: not yet, or never; errno says which.
  void UseSecrets();

  static int WriteToSocket(bio_st* bio, const char* bytes, int size);
  static int ReadFromSocket(bio_st* bio, char* bytes, int size);
  static void TakeSecret(const ssl_st* ssl, const char* line);
  static unsigned ServerKey(ssl_st* ssl, const char* identity, unsigned char* key, unsigned max);
  static unsigned ClientKey(ssl_st* ssl, const char* hint, char* identity, unsigned max_identity,
                            unsigned char* key, unsigned max);

  SoftTls* const tls_;
  ssl_st* ssl_;  // Null once the handshake is over.
  const int fd_;
  const bool dials_;
  FindToken find_token_;  // Used by the acceptor.
  uint32_t number_ = 0;   // Used by the dialler: the queue pair that it wants, and its token.
  Token token_ = {};
  size_t heard_ = 0;  // In the handshake.
  bool waits_for_peer_ = false;
  bool kernel_sends_ = false;
  SoftKernelSender kernel_;
  SoftTrafficSecret dialler_secret_ = {};
  SoftTrafficSecret acceptor_secret_ = {};
  absl::optional<SoftRecordWriter> writer_;
  absl::optional<SoftRecordReader> reader_;
};

// TLS 1.3 between two sides that share a queue pair's token. The token is the pre-shared key, so it
// never crosses the wire, and neither side needs a certificate. Thread-safe.
class SoftTls {
 public:
  static absl::StatusOr<std::unique_ptr<SoftTls>> Create();
  ~SoftTls();

  // Null: OpenSSL is out of memory. `fd` outlives the session, as does this.
  std::unique_ptr<SoftTlsSession> Dial(int fd, uint32_t number, const Token& token);
  std::unique_ptr<SoftTlsSession> Accept(int fd, SoftTlsSession::FindToken find_token);

 private:
  friend class SoftTlsSession;
  SoftTls() = default;
  std::unique_ptr<SoftTlsSession> Start(int fd, bool dials);

  ssl_ctx_st* context_ = nullptr;
  bio_method_st* socket_ = nullptr;
  SoftBlocks blocks_;
  std::atomic<bool> try_kernel_{true};
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_TLS_H_
