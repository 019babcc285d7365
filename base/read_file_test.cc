#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

std::string Path(const std::string& name) { return testing::TempDir() + "/" + name; }

TEST(ReadFile, ReadsAll) {
  const std::string text(200'000, 'x');
  std::ofstream(Path("long")) << text;
  EXPECT_EQ(*ReadFile(Path("long"), 200'000), text);
  const auto longer = ReadFile(Path("long"), 199'999);
  EXPECT_TRUE(absl::StrContains(longer.status().message(), "is larger than 199999 bytes"));
  std::ofstream(Path("empty")) << "";
  EXPECT_EQ(*ReadFile(Path("empty"), 10), "");
  EXPECT_EQ(*ReadFile("/dev/null", 10), "");
}

TEST(ReadFile, SaysWhatCannotBeRead) {
  EXPECT_TRUE(absl::StrContains(ReadFile(Path("none"), 10).status().message(), "No such file"));
  EXPECT_TRUE(
      absl::StrContains(ReadFile(testing::TempDir(), 10).status().message(), "Is a directory"));
}

TEST(ReadFile, EndsWhereTheFileDoesNot) {
  EXPECT_TRUE(absl::StrContains(ReadFile("/dev/zero", 1 << 20).status().message(),
                                "a device without an end"));
  const std::string fifo = Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int writer = open(fifo.c_str(), O_RDWR);  // So that its readers meet no end.
  ASSERT_GE(writer, 0);
  const auto began = std::chrono::steady_clock::now();
  const auto silent = ReadFile(fifo, 10, absl::Milliseconds(50));
  EXPECT_TRUE(absl::StrContains(silent.status().message(), "had not ended after 50ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  close(writer);
}

// As `--token_file=<(command)` of a shell makes one.
TEST(ReadFile, ReadsAPipeThatEnds) {
  const std::string fifo = Path("ends");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int writer = open(fifo.c_str(), O_RDWR);
  ASSERT_GE(writer, 0);
  std::thread writes([writer] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(write(writer, "secret", 6), 6);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    close(writer);
  });
  EXPECT_EQ(*ReadFile(fifo, 10, absl::Seconds(20)), "secret");
  writes.join();
}

}  // namespace
}  // namespace tryst
