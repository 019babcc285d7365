// The program of tests that share one (joined.bzl): it runs those of the source that it is called
// after, so that each test is still a target with a name, a log and shards of its own.

#include <cstring>
#include <iostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// "bin/channel_ops__takes_test" and "/a/takes_test" are called "takes_test".
std::string NameOf(const std::string& program) {
  const std::string name = program.substr(program.rfind('/') + 1);
  const size_t folder = name.rfind("__");
  return folder == std::string::npos ? name : name.substr(folder + 2);
}

bool IsOf(const testing::TestInfo& test, const std::string& name) {
  const std::string file = test.file();
  return file.substr(file.rfind('/') + 1) == name + ".cc";
}

// What a filter calls a source's tests, and those of the others: a suite by its name where all of
// it is of one kind.
struct Patterns {
  std::string own, others;
  static void Add(std::string* to, const std::string& pattern) {
    *to += (to->empty() ? "" : ":") + pattern;
  }
};

Patterns PatternsOf(const std::string& name) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  Patterns patterns;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    std::string own, others;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string pattern = std::string(suite.name()) + "." + test.name();
      Patterns::Add(IsOf(test, name) ? &own : &others, pattern);
    }
    const std::string whole = std::string(suite.name()) + ".*";
    if (!own.empty()) Patterns::Add(&patterns.own, others.empty() ? whole : own);
    if (!others.empty()) Patterns::Add(&patterns.others, own.empty() ? whole : others);
  }
  return patterns;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const std::string name = NameOf(argv[0]);
  const Patterns patterns = PatternsOf(name);
  if (patterns.own.empty()) {
    std::cerr << "no test is in " << name << ".cc: call this program by a test's name\n";
    return 2;
  }
  std::string& filter = testing::GTEST_FLAG(filter);
  if (filter == "*") {
    filter = patterns.own;
  } else if (!patterns.others.empty()) {
    filter += (filter.find('-') == std::string::npos ? "-" : ":") + patterns.others;
  }
  return RUN_ALL_TESTS();
}
