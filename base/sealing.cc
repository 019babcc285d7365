#include "base/sealing.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <climits>

#include "base/log.h"

namespace tryst {
namespace {

void Hkdf(int mode, absl::string_view secret, absl::string_view salt, absl::string_view info,
          absl::Span<uint8_t> key) {
  const auto bytes = [](const char* name, absl::string_view value) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
  };
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      bytes(OSSL_KDF_PARAM_KEY, secret), bytes(OSSL_KDF_PARAM_INFO, info),
      // An empty salt is none; the extraction of RFC 5869 then takes zeroes.
      salt.empty() ? OSSL_PARAM_construct_end() : bytes(OSSL_KDF_PARAM_SALT, salt),
      OSSL_PARAM_construct_end()};
  EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = EVP_KDF_CTX_new(kdf);
  EVP_KDF_free(kdf);
  // Only want of memory, or an OpenSSL without HKDF, could make it fail.
  TRYST_CHECK(context != nullptr &&
              EVP_KDF_derive(context, key.data(), key.size(), parameters) == 1)
      << "OpenSSL derives no key";
  EVP_KDF_CTX_free(context);
}

}  // namespace

void DeriveKey(absl::string_view secret, absl::string_view salt, absl::string_view info,
               absl::Span<uint8_t> key) {
  Hkdf(EVP_KDF_HKDF_MODE_EXTRACT_AND_EXPAND, secret, salt, info, key);
}

void ExpandKey(absl::string_view secret, absl::string_view info, absl::Span<uint8_t> key) {
  Hkdf(EVP_KDF_HKDF_MODE_EXPAND_ONLY, secret, "", info, key);
}

Sealing::Sealing(absl::Span<const uint8_t> key, absl::Span<const uint8_t> nonce)
    : cipher_(EVP_CIPHER_CTX_new()) {
  TRYST_CHECK(nonce.size() == kNonceBytes);
  std::copy(nonce.begin(), nonce.end(), nonce_);
  SetKey(key);
}

Sealing::Sealing(absl::string_view secret, absl::string_view salt, absl::string_view info)
    : cipher_(EVP_CIPHER_CTX_new()) {
  uint8_t both[32 + kNonceBytes];
  DeriveKey(secret, salt, info, absl::MakeSpan(both));
  std::copy(both + 32, both + sizeof(both), nonce_);
  SetKey(absl::MakeConstSpan(both, 32));
  OPENSSL_cleanse(both, sizeof(both));
}

Sealing::~Sealing() { EVP_CIPHER_CTX_free(cipher_); }

void Sealing::SetKey(absl::Span<const uint8_t> key) {
  TRYST_CHECK(key.size() == 16 || key.size() == 32);
  const EVP_CIPHER* const kind = key.size() == 16 ? EVP_aes_128_gcm() : EVP_aes_256_gcm();
  TRYST_CHECK(cipher_ != nullptr &&
              EVP_CipherInit_ex(cipher_, kind, nullptr, key.data(), nullptr, 1) == 1)
      << "OpenSSL has no AES-GCM";
}

void Sealing::Begin(uint64_t number, absl::string_view beside, int seals) {
  uint8_t nonce[kNonceBytes];
  std::copy(nonce_, nonce_ + kNonceBytes, nonce);
  for (size_t i = 0; i < 8; ++i) {
    nonce[kNonceBytes - 1 - i] ^= static_cast<uint8_t>(number >> (8 * i));
  }
  int ignored = 0;
  TRYST_CHECK(EVP_CipherInit_ex(cipher_, nullptr, nullptr, nullptr, nonce, seals) == 1 &&
              EVP_CipherUpdate(cipher_, nullptr, &ignored,
                               reinterpret_cast<const uint8_t*>(beside.data()),
                               static_cast<int>(beside.size())) == 1);
}

void Sealing::BeginSeal(uint64_t number, absl::string_view beside) { Begin(number, beside, 1); }
void Sealing::BeginOpen(uint64_t number, absl::string_view beside) { Begin(number, beside, 0); }

void Sealing::Add(const void* in, size_t bytes, void* out) {
  while (bytes > 0) {
    const int some = static_cast<int>(std::min<size_t>(bytes, INT_MAX / 2));
    int moved = 0;
    TRYST_CHECK(EVP_CipherUpdate(cipher_, static_cast<uint8_t*>(out), &moved,
                                 static_cast<const uint8_t*>(in), some) == 1 &&
                moved == some);
    in = static_cast<const uint8_t*>(in) + some;
    out = static_cast<uint8_t*>(out) + some;
    bytes -= static_cast<size_t>(some);
  }
}

void Sealing::EndSeal(uint8_t tag[kTagBytes]) {
  uint8_t nothing[16];
  int moved = 0;
  TRYST_CHECK(EVP_CipherFinal_ex(cipher_, nothing, &moved) == 1 &&
              EVP_CIPHER_CTX_ctrl(cipher_, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag) == 1);
}

bool Sealing::EndOpen(const uint8_t tag[kTagBytes]) {
  uint8_t nothing[16];
  int moved = 0;
  return EVP_CIPHER_CTX_ctrl(cipher_, EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                             const_cast<uint8_t*>(tag)) == 1 &&
         EVP_CipherFinal_ex(cipher_, nothing, &moved) == 1;
}

}  // namespace tryst
