#ifndef TRYST_BASE_GUARDS_REACHED_H_
#define TRYST_BASE_GUARDS_REACHED_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/reached.h"
#include "gtest/gtest.h"

namespace tryst {

// Fails a test program, when all of its tests have run, if none of them reached some guard whose
// text begins with `prefix`, or if there are not `fewest` such guards. Named once, at namespace
// scope:
//
//   const auto* const kReached =
//       ::testing::AddGlobalTestEnvironment(new GuardsReached("soft: ", 10));
class GuardsReached final : public ::testing::Environment {
 public:
  GuardsReached(std::string prefix, size_t fewest) : prefix_(std::move(prefix)), fewest_(fewest) {}

  void TearDown() override {
    const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
    if (tests.test_to_run_count() != tests.total_test_count()) return;
    size_t guards = 0;
    ForEachGuard([this, &guards](const std::string& name, uint64_t times) {
      if (name.compare(0, prefix_.size(), prefix_) != 0) return;
      ++guards;
      EXPECT_GT(times, 0u) << "no test reaches the guard \"" << name << "\"";
    });
    EXPECT_GE(guards, fewest_);
  }

 private:
  const std::string prefix_;
  const size_t fewest_;
};

}  // namespace tryst

#endif  // TRYST_BASE_GUARDS_REACHED_H_
