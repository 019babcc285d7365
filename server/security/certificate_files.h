#ifndef TRYST_SERVER_SECURITY_CERTIFICATE_FILES_H_
#define TRYST_SERVER_SECURITY_CERTIFICATE_FILES_H_

#include <array>
#include <atomic>
#include <cstdint>
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

// The texts of the three files, checked: the certificate parses, is valid now and belongs to the
// key, and the authorities parse. kInvalidArgument says which file is wrong, and how.
struct CertificateTexts {
  std::string certificate;
  std::string key;
  std::string ca;
};
absl::StatusOr<CertificateTexts> ReadCertificates(const CertificatePaths& paths);

// Gives gRPC the last set of three files that passed the checks. gRPC itself takes whatever it
// reads; here a file that is half written, has expired or belongs to another key does not replace a
// good one. gRPC reads copies in memory; where the kernel refuses those, the files themselves, and
// then whatever is there. Thread-safe.
class CertificateFiles {
 public:
  CertificateFiles(CertificatePaths paths, absl::Duration period);
  ~CertificateFiles();

  // The paths that gRPC watches: of our copies, or of the files themselves.
  const CertificatePaths& watched() const { return watched_; }
  bool watches_copies() const { return copies_[0].valid(); }
  // Has the watching thread read the files now.
  void ReadSoon();
  // How many good sets there were. Where gRPC reads copies, it had no others. Thread-safe.
  uint64_t published() const { return published_.load(std::memory_order_relaxed); }

 private:
  void Run();
  void Look();
  void Note(std::string all);
  absl::Status Publish(const CertificateTexts& texts);

  const CertificatePaths paths_;
  const absl::Duration period_;
  CertificatePaths watched_;
  std::array<OwnedFd, 3> copies_;  // Certificate, key, authorities; none, or all.

  std::atomic<uint64_t> published_{0};
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_soon_ ABSL_GUARDED_BY(mu_) = false;

  // Only the watching thread uses these.
  std::string last_;  // The texts of the last good set.
  std::string last_trouble_;
  std::thread thread_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_SECURITY_CERTIFICATE_FILES_H_
