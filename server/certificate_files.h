#ifndef TRYST_SERVER_CERTIFICATE_FILES_H_
#define TRYST_SERVER_CERTIFICATE_FILES_H_

#include <array>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "channel/arena/shared_memory.h"

namespace tryst {

struct CertificatePaths {
  std::string certificate;
  std::string key;
  std::string ca;
};

// What the files say, checked: the certificate can be read, is valid now and is the key's, and the
// authorities can be read. kInvalidArgument says which file is wrong, and how.
struct CertificateTexts {
  std::string certificate;
  std::string key;
  std::string ca;
};
absl::StatusOr<CertificateTexts> ReadCertificates(const CertificatePaths& paths);

// The last of three files that made sense together, for gRPC, which takes whatever it reads: a
// file that is half written, expired or another key's does not replace one that works. What gRPC
// reads lies in memory alone. Thread-safe.
class CertificateFiles {
 public:
  CertificateFiles(CertificatePaths paths, absl::Duration period);
  ~CertificateFiles();

  // What gRPC is to watch; the files themselves where the kernel lets us keep no copy.
  const CertificatePaths& watched() const { return watched_; }

 private:
  void Run();
  void Look();
  bool Publish(const CertificateTexts& texts);

  const CertificatePaths paths_;
  const absl::Duration period_;
  CertificatePaths watched_;
  std::array<OwnedFd, 3> copies_;  // Certificate, key, authorities.

  Mutex mu_;
  CondVar closing_changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;

  // The thread's only.
  std::string last_;  // What was published.
  std::string last_trouble_;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_CERTIFICATE_FILES_H_
