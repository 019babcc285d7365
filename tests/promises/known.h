#ifndef TRYST_TESTS_PROMISES_KNOWN_H_
#define TRYST_TESTS_PROMISES_KNOWN_H_

#include <string>

namespace tryst {

// Why the test that runs now is known to fail, by known.inc; empty: it is to pass, or
// --also_known=1 is given.
std::string WhyKnownToFail();
// Lines of known.inc that name a suite of this program, and no test of it: somebody's slip.
std::string StaleKnown();

}  // namespace tryst

// In the first line of a test.
#define SKIP_IF_KNOWN() \
  if (const std::string why = ::tryst::WhyKnownToFail(); !why.empty()) GTEST_SKIP() << why

#endif  // TRYST_TESTS_PROMISES_KNOWN_H_
