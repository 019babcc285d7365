#include "server/security/certificate_files.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/read_file.h"
#include "server/security/free_with.h"

namespace tryst {
namespace {

using Bio = std::unique_ptr<BIO, FreeWith<&BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

constexpr size_t kMostBytes = 1 << 20;

absl::Status Bad(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, " ", what));
}

// A call for a copy in memory has failed.
absl::Status Failed(absl::string_view call) {
  return absl::UnavailableError(
      absl::StrCat("a copy of the certificate's files in memory: ", call, ": ", strerror(errno)));
}

std::string TextOf(const CertificateTexts& texts) {
  return absl::StrCat(texts.certificate, texts.key, texts.ca);
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMostBytes);
  if (text.ok() && text->empty()) return Bad(path, "is empty");
  return text;
}

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL would otherwise ask for a key's password on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

}  // namespace

absl::StatusOr<CertificateTexts> ReadCertificates(const CertificatePaths& paths) {
  CertificateTexts texts;
  for (const auto& [path, text] :
       {std::make_pair(&paths.certificate, &texts.certificate),
        std::make_pair(&paths.key, &texts.key), std::make_pair(&paths.ca, &texts.ca)}) {
    absl::StatusOr<std::string> read = ReadText(*path);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  const Certificate own(
      PEM_read_bio_X509(Open(texts.certificate).get(), nullptr, NoPassword, nullptr));
  if (own == nullptr) return Bad(paths.certificate, "holds no certificate in PEM");
  if (X509_cmp_current_time(X509_get0_notBefore(own.get())) > 0) {
    return Bad(paths.certificate, "holds a certificate that is not valid yet");
  }
  if (X509_cmp_current_time(X509_get0_notAfter(own.get())) < 0) {
    return Bad(paths.certificate, "holds a certificate that has expired");
  }
  const Key key(PEM_read_bio_PrivateKey(Open(texts.key).get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return Bad(paths.key, "holds no private key in PEM without a password");
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Bad(paths.key,
               absl::StrCat("does not hold the private key that belongs to ", paths.certificate));
  }
  const Certificate ca(PEM_read_bio_X509(Open(texts.ca).get(), nullptr, NoPassword, nullptr));
  if (ca == nullptr) return Bad(paths.ca, "holds no certificate in PEM");
  return texts;
}

CertificateFiles::CertificateFiles(CertificatePaths paths, absl::Duration period)
    : paths_(std::move(paths)), period_(period), watched_(paths_) {
  const auto texts = ReadCertificates(paths_);
  for (OwnedFd& copy : copies_) copy = OwnedFd(memfd_create("tryst-certificate", MFD_CLOEXEC));
  const CertificatePaths copies = {absl::StrCat("/proc/self/fd/", copies_[0].get()),
                                   absl::StrCat("/proc/self/fd/", copies_[1].get()),
                                   absl::StrCat("/proc/self/fd/", copies_[2].get())};
  absl::Status copied = texts.ok() ? Publish(*texts) : texts.status();
  if (copied.ok() && access(copies.key.c_str(), R_OK) != 0) copied = Failed("open");
  if (copied.ok()) {
    watched_ = copies;
  } else {
    for (OwnedFd& copy : copies_) copy = OwnedFd();
    TRYST_LOG(Warning) << "gRPC reads the certificate's files as they are, and no checked copies ("
                       << copied.message()
                       << "): replace them by renaming, so that it reads none that is half written";
    if (texts.ok()) Note(TextOf(*texts));
  }
  thread_ = std::thread([this] { Run(); });
}

CertificateFiles::~CertificateFiles() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void CertificateFiles::ReadSoon() {
  MutexLock lock(&mu_);
  reads_soon_ = true;
  changed_.NotifyAll();
}

void CertificateFiles::Run() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(period_);
      while (!closing_ && !reads_soon_ && !changed_.WaitUntil(&mu_, until)) {
      }
      if (closing_) return;
      reads_soon_ = false;
    }
    Look();
  }
}

void CertificateFiles::Look() {
  const auto texts = ReadCertificates(paths_);
  absl::Status status = texts.status();
  if (status.ok() && watches_copies()) status = Publish(*texts);
  if (!status.ok()) {
    const std::string trouble(status.message());
    if (trouble == last_trouble_) return;
    TRYST_LOG(Warning) << trouble
                       << (watches_copies()
                               ? ", so this worker keeps the certificate that it read before"
                               : ", and gRPC reads it as it is");
    last_trouble_ = trouble;
    return;
  }
  last_trouble_.clear();
  if (!watches_copies()) Note(TextOf(*texts));
}

// gRPC has this set, or will within a second.
void CertificateFiles::Note(std::string all) {
  if (all == last_) return;
  last_ = std::move(all);
  published_.fetch_add(1, std::memory_order_relaxed);
}

// dup3() replaces each open file in one step, so that no reader gets half of one; and none is
// replaced before there are copies of all.
absl::Status CertificateFiles::Publish(const CertificateTexts& texts) {
  std::string all = TextOf(texts);
  if (all == last_) return absl::OkStatus();
  const std::string* const parts[] = {&texts.certificate, &texts.key, &texts.ca};
  std::array<OwnedFd, 3> fresh;
  for (size_t i = 0; i < fresh.size(); ++i) {
    fresh[i] = OwnedFd(memfd_create("tryst-certificate", MFD_CLOEXEC));
    if (!fresh[i].valid() || !copies_[i].valid()) return Failed("memfd_create");
    errno = ENOSPC;  // What a write says that ends early.
    if (write(fresh[i].get(), parts[i]->data(), parts[i]->size()) !=
        static_cast<ssize_t>(parts[i]->size())) {
      return Failed("write");
    }
  }
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (dup3(fresh[i].get(), copies_[i].get(), O_CLOEXEC) < 0) return Failed("dup3");
  }
  Note(std::move(all));
  return absl::OkStatus();
}

}  // namespace tryst
