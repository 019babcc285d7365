#ifndef TRYST_TESTS_PROCESS_PROMISES_KNOWN_H_
#define TRYST_TESTS_PROCESS_PROMISES_KNOWN_H_

#include <string>

namespace tryst {

// Why known.inc says that the running test fails. Empty: it must pass, or --also_known=1 was given.
std::string WhyKnownToFail();
// Lines of known.inc that name a suite of this program but none of its tests: a typing error.
std::string StaleKnown();

}  // namespace tryst

// Write it in the first line of a test.
#define SKIP_IF_KNOWN() \
  if (const std::string why = ::tryst::WhyKnownToFail(); !why.empty()) GTEST_SKIP() << why

#endif  // TRYST_TESTS_PROCESS_PROMISES_KNOWN_H_
