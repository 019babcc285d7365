#include "base/descriptor_table.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// How many descriptors the kernel has room for without enlarging the table.
int TableSize() {
  FILE* const file = fopen("/proc/self/status", "r");
  EXPECT_NE(file, nullptr);
  char line[256];
  int size = 0;
  while (fgets(line, sizeof(line), file) != nullptr && sscanf(line, "FDSize: %d", &size) != 1) {
  }
  fclose(file);
  return size;
}

TEST(DescriptorTableTest, HasRoomForSoMany) {
  ASSERT_LT(TableSize(), 500) << "this test says nothing where the table is as large already";
  EnlargeDescriptorTable(500);
  EXPECT_GE(TableSize(), 500);
}

TEST(DescriptorTableTest, LeavesNoneOpen) {
  EnlargeDescriptorTable(700);
  const int next = dup(0);
  EXPECT_LT(next, 50);
  close(next);
  EXPECT_EQ(fcntl(699, F_GETFD), -1);
}

TEST(DescriptorTableTest, GoesNoFartherThanTheLimit) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit low = limit;
  low.rlim_cur = 900;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EnlargeDescriptorTable(100'000);
  EXPECT_GE(TableSize(), 900);
  EXPECT_LT(TableSize(), 4096);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace tryst
