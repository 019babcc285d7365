#ifndef TRYST_TESTS_PROMISES_KNOWN_H_
#define TRYST_TESTS_PROMISES_KNOWN_H_

namespace tryst {

// Why the test that runs now is known to fail, by known.inc; null: it is to pass. Asks for
// nothing where --also_known=1 is given.
const char* WhyKnownToFail();

}  // namespace tryst

// In the first line of a test.
#define SKIP_IF_KNOWN() \
  if (const char* why = ::tryst::WhyKnownToFail()) GTEST_SKIP() << why

#endif  // TRYST_TESTS_PROMISES_KNOWN_H_
