#ifndef TRYST_VERBS_SOFT_SOFT_KERNEL_TLS_H_
#define TRYST_VERBS_SOFT_SOFT_KERNEL_TLS_H_

#include <linux/tls.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>

#include "verbs/soft/soft_records.h"

namespace tryst {

// What setsockopt(SOL_TLS, TLS_TX) takes for a direction that goes on with these keys.
tls12_crypto_info_aes_gcm_128 KernelKeys(const SoftRecordKeys& keys);

// Has the kernel encrypt what is sent on a connected socket from now on: it does so while it
// copies. False: this kernel or this kind of socket has no TLS, and nothing has changed. Receiving
// stays with SoftRecordReader, which puts bytes where they belong without a copy; the kernel does
// not.
bool KernelSends(int fd, SoftRecordKeys* keys);

// Sends over a socket of which KernelSends() was true. The kernel keeps the first key for good, so
// before it has sealed `records` with it, sending fails with ECONNRESET, and the connection is made
// anew.
class SoftKernelSender {
 public:
  explicit SoftKernelSender(uint64_t records = SoftRecordWriter::kRecordsOfKey) : left_(records) {}
  // As sendmsg(2).
  ssize_t Send(int fd, const iovec* pieces, int count);

 private:
  uint64_t left_;  // At least so many may still be sealed.
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_KERNEL_TLS_H_
