#ifndef TRYST_BASE_SEALING_H_
#define TRYST_BASE_SEALING_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct evp_cipher_ctx_st;

namespace tryst {

// Fills `key` with HKDF-SHA256 (RFC 5869) of a secret. Every purpose has an `info` of its own, and
// every connection or call a `salt`, so no two share a key.
void DeriveKey(absl::string_view secret, absl::string_view salt, absl::string_view info,
               absl::Span<uint8_t> key);
// The second half of HKDF alone, for a `secret` that is a key already.
void ExpandKey(absl::string_view secret, absl::string_view info, absl::Span<uint8_t> key);

// Encrypts and proves messages with AES-GCM: who does not know the key can neither read nor make
// one. One message at a time, and no number twice under one key. Used by one thread.
class Sealing {
 public:
  static constexpr size_t kTagBytes = 16;
  static constexpr size_t kNonceBytes = 12;

  // A key of 16 or 32 bytes.
  Sealing(absl::Span<const uint8_t> key, absl::Span<const uint8_t> nonce);
  // With key and nonce from DeriveKey().
  Sealing(absl::string_view secret, absl::string_view salt, absl::string_view info);
  ~Sealing();
  Sealing(const Sealing&) = delete;
  Sealing& operator=(const Sealing&) = delete;

  // Begins message `number`; `beside` is proved and not hidden.
  void BeginSeal(uint64_t number, absl::string_view beside);
  void BeginOpen(uint64_t number, absl::string_view beside);
  // Its next bytes, in any pieces. `out` may be `in`.
  void Add(const void* in, size_t bytes, void* out);
  void EndSeal(uint8_t tag[kTagBytes]);
  // False: somebody else has made it. What Add() wrote must not be used.
  [[nodiscard]] bool EndOpen(const uint8_t tag[kTagBytes]);

 private:
  void SetKey(absl::Span<const uint8_t> key);
  void Begin(uint64_t number, absl::string_view beside, int seals);

  evp_cipher_ctx_st* const cipher_;
  uint8_t nonce_[kNonceBytes];
};

}  // namespace tryst

#endif  // TRYST_BASE_SEALING_H_
