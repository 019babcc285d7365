#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/doctor/checks.h"
#include "server/security/free_with.h"
#include "server/security/security.h"

namespace tryst {
namespace {

constexpr absl::Duration kSoon = absl::Hours(14 * 24);

using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using Text = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;

// Null: there is no such file, or it does not parse.
template <typename Object, auto Parse>
Object ReadPem(const Host& host, const std::string& path) {
  const auto pem = path.empty() ? absl::nullopt : host.Read(path);
  if (!pem) return nullptr;
  const Text text(BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())));
  return Object(Parse(text.get(), nullptr, nullptr, nullptr));
}
Certificate ReadCertificate(const Host& host, const std::string& path) {
  return ReadPem<Certificate, PEM_read_bio_X509>(host, path);
}
Key ReadKey(const Host& host, const std::string& path) {
  return ReadPem<Key, PEM_read_bio_PrivateKey>(host, path);
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? absl::FromTM(parts, absl::UTCTimeZone())
                                            : absl::InfiniteFuture();
}

std::vector<std::string> Uris(X509* certificate) {
  std::vector<std::string> uris;
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  GENERAL_NAMES_free(names);
  return uris;
}

void CertificateUnreadable(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const auto bad = [&](const std::string& path, const char* what) {
    report->Fault(
        absl::StrCat(path, host.Exists(path) ? " is no " : " is not there: no ", what),
        "the server will not start with mutual TLS",
        absl::StrCat("put a PEM file there that this user may read: openssl ",
                     absl::StrContains(what, "key") ? "pkey" : "x509", " -in ", path, " -noout"));
  };
  if (!config.certificate_file.empty() &&
      ReadCertificate(host, config.certificate_file) == nullptr) {
    bad(config.certificate_file, "certificate");
  }
  if (!config.ca_file.empty() && ReadCertificate(host, config.ca_file) == nullptr) {
    bad(config.ca_file, "certificate");
  }
  if (!config.key_file.empty() && ReadKey(host, config.key_file) == nullptr) {
    bad(config.key_file, "private key");
  }
}

void CertificateTime(const Host& host, Report* report) {
  for (const std::string& path : {host.config().certificate_file, host.config().ca_file}) {
    const Certificate certificate = ReadCertificate(host, path);
    if (certificate == nullptr) continue;
    const absl::Time ends = TimeOf(X509_get0_notAfter(certificate.get()));
    const absl::Time begins = TimeOf(X509_get0_notBefore(certificate.get()));
    const absl::Time now = host.calls().now();
    const std::string day = absl::FormatTime("%Y-%m-%d", ends, absl::UTCTimeZone());
    if (ends <= now) {
      report->Fault(absl::StrCat(path, " expired on ", day), "every peer refuses it",
                    "put a new one in its place; it is read again without a restart");
    } else if (begins > now) {
      report->Fault(absl::StrCat(path, " is not valid before ",
                                 absl::FormatTime("%Y-%m-%d %H:%M", begins, absl::UTCTimeZone())),
                    "every peer refuses it until then", "check this machine's clock: date -u");
    } else if (ends - now < kSoon) {
      report->Warn(absl::StrCat(path, " expires on ", day), "then every peer refuses it",
                   "renew it now; it is read again without a restart");
    }
  }
}

void CertificateKey(const Host& host, Report* report) {
  const Certificate certificate = ReadCertificate(host, host.config().certificate_file);
  const Key key = ReadKey(host, host.config().key_file);
  if (certificate == nullptr || key == nullptr ||
      X509_check_private_key(certificate.get(), key.get()) == 1) {
    return;
  }
  report->Fault(
      absl::StrCat(host.config().key_file, " is not the key of ", host.config().certificate_file),
      "no TLS handshake can succeed", "put the pair that was made together there");
}

void CertificateSigner(const Host& host, Report* report) {
  const Certificate certificate = ReadCertificate(host, host.config().certificate_file);
  const Certificate authority = ReadCertificate(host, host.config().ca_file);
  if (certificate == nullptr || authority == nullptr) return;
  const Key key(X509_get_pubkey(authority.get()));
  if (key != nullptr && X509_verify(certificate.get(), key.get()) == 1) return;
  report->Warn(absl::StrCat(host.config().certificate_file, " was not signed by the first of ",
                            host.config().ca_file),
               "peers with the same ca_file refuse us unless a chain leads there",
               absl::StrCat("openssl verify -CAfile ", host.config().ca_file, " ",
                            host.config().certificate_file));
}

void CertificateName(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const Certificate certificate = ReadCertificate(host, config.certificate_file);
  if (certificate == nullptr || config.job.empty()) return;
  const std::string worker = absl::StrCat("/job:", config.job, "/replica:0/task:", config.task);
  const std::vector<std::string> uris = Uris(certificate.get());
  if (UriNames(uris, config.cluster, worker)) return;
  report->Fault(absl::StrCat(config.certificate_file, " names ",
                             uris.empty() ? "nobody" : absl::StrJoin(uris, ", "), ", not ", worker,
                             " of ", config.cluster),
                "peers refuse our calls",
                absl::StrCat("issue it with the URI tryst://", config.cluster, "/job:", config.job,
                             " among its subject alternative names"));
}

void SecretPermissions(const Host& host, Report* report) {
  for (const std::string& path : {host.config().key_file, host.config().token_file}) {
    if (path.empty()) continue;
    const auto mode = host.calls().mode(host.Below(path));
    if (!mode.ok() || (*mode & 0077) == 0) continue;
    report->Warn(absl::StrFormat("%s may be used by others (mode %04o)", path, *mode),
                 "whoever reads it can speak as this worker", absl::StrCat("chmod 600 ", path));
  }
}

void Token(const Host& host, Report* report) {
  const std::string& path = host.config().token_file;
  if (path.empty()) return;
  const auto token = host.Read(path);
  if (token && token->size() >= 16) return;
  report->Fault(token ? absl::StrCat(path, " holds ", token->size(), " bytes")
                      : absl::StrCat(path, " cannot be read"),
                "a token has at least 16 bytes; the server will not start",
                absl::StrCat("openssl rand -hex 32 > ", path, "; the same file for every worker"));
}

void SecurityMode(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const int ways = (config.certificate_file.empty() ? 0 : 1) + (config.token_file.empty() ? 0 : 1) +
                   (config.insecure ? 1 : 0);
  if (ways == 1 || config.job.empty()) return;
  report->Fault(absl::StrCat(ways, " ways of security are configured"),
                "the server starts with exactly one",
                "set certificate_file, key_file and ca_file; or token_file; or, on one machine, "
                "insecure");
}

void InsecureAnywhere(const Host& host, Report* report) {
  if (!host.config().insecure || !host.config().insecure_anywhere) return;
  report->Warn("insecure_anywhere is set",
               "whoever reaches the port can read and write every tensor",
               "use certificates, or a token file in a closed lab");
}

void EncryptOff(const Host& host, Report* report) {
  if (!ClearDespiteProof(host.config())) return;
  report->Warn(
      "encrypt=off beside certificates or a token",
      absl::StrCat("encrypted: ", EncryptionText(host.config())),
      "remove the setting, on all workers; or keep it where nobody else is on the network");
}

void NicInTheClear(const Host& host, Report* report) {
  const ServerConfig& config = host.config();
  const bool named = config.nic == "ibv" || absl::StartsWith(config.nic, "ofi:");
  if (!named || !Encrypts(config) || config.encrypt == "trusted_nic") return;
  report->Fault(absl::StrCat("nic=", config.nic, " encrypts nothing, and encrypt is on"),
                "the server will not start",
                "nic=soft; or, if nobody else is on that network, encrypt=trusted_nic");
}

void Limits(const Host& host, Report* report) {
  const absl::Status limits = CheckLimits(host.config());
  if (limits.ok()) return;
  report->Fault(std::string(limits.message()), "the server refuses to start",
                "change the settings named; docs/CONFIG.md has their meaning");
}

}  // namespace

std::vector<Check> SecurityChecks() {
  return {
      {"security-mode", SecurityMode},           {"certificate-unreadable", CertificateUnreadable},
      {"certificate-time", CertificateTime},     {"certificate-key", CertificateKey},
      {"certificate-signer", CertificateSigner}, {"certificate-name", CertificateName},
      {"secret-permissions", SecretPermissions}, {"token", Token},
      {"insecure-anywhere", InsecureAnywhere},   {"encrypt-off", EncryptOff},
      {"nic-in-the-clear", NicInTheClear},       {"limits", Limits}};
}

}  // namespace tryst
