#ifndef TRYST_TESTS_FUZZ_REQUIRE_H_
#define TRYST_TESTS_FUZZ_REQUIRE_H_

#include <cstdlib>

// What must hold of an input: else the fuzzer has found something.
inline void Require(bool condition) {
  if (!condition) abort();
}

#endif  // TRYST_TESTS_FUZZ_REQUIRE_H_
