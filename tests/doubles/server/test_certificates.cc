#include "tests/doubles/server/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

template <typename Print>
std::string ToPem(Print print) {
  BIO* bio = BIO_new(BIO_s_mem());
  TRYST_CHECK(print(bio) == 1);
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  std::string out(data, static_cast<size_t>(bytes));
  BIO_free(bio);
  return out;
}

void AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  TRYST_CHECK(extension != nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

void WriteFile(const std::string& path, const std::string& text) {
  {
    std::ofstream out(path + ".new", std::ios::binary | std::ios::trunc);
    out << text;
  }
  TRYST_CHECK(std::rename((path + ".new").c_str(), path.c_str()) == 0);
}

}  // namespace

struct TestAuthority::Pair {
  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;

  // Without an issuer it signs itself.
  Pair(const std::string& name, const Pair* issuer, const std::string& uri, int64_t lasts_s = 86400,
       int64_t begins_s = -7200)
      : key(EVP_EC_gen("P-256")), certificate(X509_new()) {
    const Pair* signer = issuer == nullptr ? this : issuer;
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), issuer == nullptr ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(certificate), begins_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), lasts_s);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(signer->certificate));
    if (issuer == nullptr) {
      AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
    } else {
      AddExtension(certificate, issuer->certificate, NID_subject_alt_name,
                   "DNS:worker.example,URI:" + uri);
    }
    TRYST_CHECK(X509_sign(certificate, signer->key, EVP_sha256()) != 0);
  }
  ~Pair() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  std::string CertificatePem() const {
    return ToPem([this](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
  }
  std::string KeyPem() const {
    return ToPem([this](BIO* bio) {
      return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
};

TestAuthority::TestAuthority() : ca_(std::make_unique<Pair>("tryst test authority", nullptr, "")) {}
TestAuthority::~TestAuthority() = default;

void TestAuthority::Write(const std::string& folder, const std::string& uri, int64_t lasts_s,
                          int64_t begins_s) const {
  const Pair pair("tryst test worker", ca_.get(), uri, lasts_s, begins_s);
  WriteFile(folder + "/ca.pem", ca_->CertificatePem());
  WriteFile(folder + "/cert.pem", pair.CertificatePem());
  WriteFile(folder + "/key.pem", pair.KeyPem());
}

}  // namespace tryst
