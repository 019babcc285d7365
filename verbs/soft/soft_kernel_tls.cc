#include "verbs/soft/soft_kernel_tls.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/soft/socket.h"

// Debian 12's headers of the C library are older than the kernel's.
#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif

namespace tryst {
namespace {

constexpr uint64_t kFullRecordBytes = 16 << 10;  // The kernel begins one for each call, too.

}  // namespace

tls12_crypto_info_aes_gcm_128 KernelKeys(const SoftRecordKeys& keys) {
  tls12_crypto_info_aes_gcm_128 info = {};
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = TLS_CIPHER_AES_GCM_128;
  static_assert(sizeof(info.key) == 16, "AES-128");
  static_assert(sizeof(info.salt) + sizeof(info.iv) == Sealing::kNonceBytes, "a nonce of GCM");
  memcpy(info.key, keys.key(), sizeof(info.key));
  memcpy(info.salt, keys.nonce(), sizeof(info.salt));
  memcpy(info.iv, keys.nonce() + sizeof(info.salt), sizeof(info.iv));
  for (size_t i = 0; i < sizeof(info.rec_seq); ++i) {
    info.rec_seq[sizeof(info.rec_seq) - 1 - i] =
        static_cast<unsigned char>(keys.sequence() >> (8 * i));
  }
  return info;
}

bool KernelSends(int fd, SoftRecordKeys* keys) {
  if (setsockopt(fd, SOL_TCP, TCP_ULP, "tls", sizeof("tls")) != 0) return false;
  tls12_crypto_info_aes_gcm_128 info = KernelKeys(*keys);
  // Where this fails the socket sends as before.
  const bool sends = setsockopt(fd, SOL_TLS, TLS_TX, &info, sizeof(info)) == 0;
  OPENSSL_cleanse(&info, sizeof(info));
  return sends;
}

ssize_t SoftKernelSender::Send(int fd, const iovec* pieces, int count) {
  if (left_ == 0) {
    errno = ECONNRESET;
    return -1;
  }
  const ssize_t sent = SendNow(fd, pieces, count);
  if (sent > 0) left_ -= std::min(left_, static_cast<uint64_t>(sent) / kFullRecordBytes + 1);
  return sent;
}

}  // namespace tryst
