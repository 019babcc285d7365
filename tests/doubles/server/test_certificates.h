#ifndef TRYST_TESTS_DOUBLES_SERVER_TEST_CERTIFICATES_H_
#define TRYST_TESTS_DOUBLES_SERVER_TEST_CERTIFICATES_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tryst {

// For tests: a new certificate authority.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();

  // Writes ca.pem, cert.pem and key.pem into `folder`, which must exist, and replaces each in one
  // step. The certificate names `uri` and is valid from `begins_s` to `lasts_s` seconds from now.
  void Write(const std::string& folder, const std::string& uri, int64_t lasts_s = 86400,
             int64_t begins_s = -7200) const;

 private:
  struct Pair;
  const std::unique_ptr<Pair> ca_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SERVER_TEST_CERTIFICATES_H_
