// The program of tests that share one (joined.bzl): it runs those of the source that it is called
// after, so that each test is still a target with a name, a log and shards of its own.

#include <cstring>
#include <iostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// Of "bin/channel_ops__takes_test" and "/a/takes_test": "takes_test".
std::string NameOf(const std::string& program) {
  const std::string name = program.substr(program.rfind('/') + 1);
  const size_t folder = name.rfind("__");
  return folder == std::string::npos ? name : name.substr(folder + 2);
}

bool IsOf(const testing::TestInfo& test, const std::string& name) {
  const std::string file = test.file();
  return file.substr(file.rfind('/') + 1) == name + ".cc";
}

// The tests of other sources, as a filter has them.
std::string Others(const std::string& name, int* own) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string others;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (IsOf(test, name)) {
        ++*own;
      } else {
        others += std::string(":") + suite.name() + "." + test.name();
      }
    }
  }
  return others;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const std::string name = NameOf(argv[0]);
  int own = 0;
  const std::string others = Others(name, &own);
  if (own == 0) {
    std::cerr << "no test is in " << name << ".cc: call this program by a test's name\n";
    return 2;
  }
  std::string& filter = testing::GTEST_FLAG(filter);
  if (!others.empty()) {
    filter += filter.find('-') == std::string::npos ? "-" + others.substr(1) : others;
  }
  return RUN_ALL_TESTS();
}
