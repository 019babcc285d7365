#include "base/printable.h"

#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(PrintableTest, OneLineStaysOneLine) {
  EXPECT_EQ(Printable("/job:a 'x' \\ \"y\" 100 %s"), "/job:a 'x' \\ \"y\" 100 %s");
  EXPECT_EQ(Printable("a\nb\r\t\x1b[31m\x07\x7f"), "a\\nb\\r\\t\\x1b[31m\\x07\\x7f");
  EXPECT_EQ(Printable(std::string("\0\xff\xc2\x9b", 4)), "\\x00\\xff\\xc2\\x9b");
  EXPECT_EQ(Printable(""), "");
}

TEST(PrintableTest, LinesStayLines) {
  EXPECT_EQ(PrintableLines("a\x1b\n\nb\r\n"), "a\\x1b\n\nb\\r\n");
  EXPECT_EQ(PrintableLines("a"), "a");
}

TEST(PrintableTest, ADocumentStaysJson) {
  EXPECT_EQ(PrintableJson("{\"a\":\"\x1b[31m\x7f\xc2\x9b \xc3\xa4\"}\n"),
            "{\"a\":\"\\u001b[31m\\u007f\\u009b \xc3\xa4\"}\n");
  EXPECT_EQ(PrintableJson("\xc2"), "\xc2");
}

}  // namespace
}  // namespace tryst
