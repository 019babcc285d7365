#include "tests/process/promises/known.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/process/promises/promise_pair.h"

namespace tryst {
namespace {

struct Known {
  const char* test;  // "Suite.Test"; "Suite.Test/Path" if it fails on that path only.
  const char* why;
};

constexpr Known kKnown[] = {
#include "tests/process/promises/known.inc"
    {nullptr, nullptr},
};

std::string NameOf(const testing::TestInfo& test) {
  return absl::StrCat(test.test_suite_name(), ".", test.name());
}

bool Covers(const Known& known, const std::string& name) {
  return name == known.test || absl::StartsWith(name, absl::StrCat(known.test, "/"));
}

}  // namespace

std::string WhyKnownToFail() {
  if (TestFlag("also_known", 0) != 0) return "";
  const std::string name = NameOf(*testing::UnitTest::GetInstance()->current_test_info());
  for (const Known& known : kKnown) {
    if (known.test != nullptr && Covers(known, name)) return absl::StrCat(name, ": ", known.why);
  }
  return "";
}

std::string StaleKnown() {
  std::string stale;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (const Known& known : kKnown) {
    if (known.test == nullptr) continue;
    bool found = false, of_ours = false;
    for (int i = 0; i < tests.total_test_suite_count(); ++i) {
      const testing::TestSuite& suite = *tests.GetTestSuite(i);
      if (!absl::StartsWith(known.test, absl::StrCat(suite.name(), "."))) continue;
      of_ours = true;
      for (int j = 0; j < suite.total_test_count(); ++j) {
        found |= Covers(known, NameOf(*suite.GetTestInfo(j)));
      }
    }
    if (of_ours && !found) absl::StrAppend(&stale, known.test, "\n");
  }
  return stale;
}

}  // namespace tryst
