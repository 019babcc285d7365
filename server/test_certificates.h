#ifndef TRYST_SERVER_TEST_CERTIFICATES_H_
#define TRYST_SERVER_TEST_CERTIFICATES_H_

#include <memory>
#include <string>

namespace tryst {

// For tests: a certificate authority of its own, made on the spot.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();

  // Writes ca.pem, cert.pem and key.pem into `folder`, which must exist, each at once. The
  // certificate is for `uri`, and for a day, or till an hour ago.
  void Write(const std::string& folder, const std::string& uri, bool expired = false) const;

 private:
  struct Pair;
  const std::unique_ptr<Pair> ca_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_TEST_CERTIFICATES_H_
