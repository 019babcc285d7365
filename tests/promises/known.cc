#include "tests/promises/known.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/promises/promise_pair.h"

namespace tryst {
namespace {

struct Known {
  const char* test;  // "Suite.Test", or "Suite.Test/Path" where it fails over that path alone.
  const char* why;
};

constexpr Known kKnown[] = {
#include "tests/promises/known.inc"
    {nullptr, nullptr},
};

}  // namespace

const char* WhyKnownToFail() {
  if (TestFlag("also_known", 0) != 0) return nullptr;
  const testing::TestInfo* now = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = absl::StrCat(now->test_suite_name(), ".", now->name());
  for (const Known& known : kKnown) {
    if (known.test == nullptr) break;
    if (name == known.test || absl::StartsWith(name, absl::StrCat(known.test, "/"))) {
      return known.why;
    }
  }
  return nullptr;
}

}  // namespace tryst
