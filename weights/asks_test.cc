#include "weights/asks.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weights/questions.h"

namespace tryst {
namespace {

WeightAsk Part() {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kPart;
  ask.number = 105;
  ask.birth = 0xf3;
  ask.tensor = 7;
  ask.box = {{0, 8}, {4, 16}};
  return ask;
}

TEST(AsksTest, WhatIsAskedComesBack) {
  WeightAsk ask = Part();
  EXPECT_EQ(EdgeOf("a/b", ask),
            "|weights|a/b|part|105.00000000000000f3|7|0+4,8+16|0|0|0000000000000000");
  auto read = ParseEdge("a/b", EdgeOf("a/b", ask));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->number, 105u);
  EXPECT_EQ(read->birth, 0xf3u);
  EXPECT_EQ(read->tensor, 7u);
  EXPECT_EQ(read->box, ask.box);
  EXPECT_EQ(read->base, 0u);
  EXPECT_FALSE(read->may_be_sent_on);
  EXPECT_EQ(read->holder, 0u);
  ask.base = 104;
  ask.may_be_sent_on = true;
  ask.holder = 0xa7;
  EXPECT_EQ(EdgeOf("a/b", ask),
            "|weights|a/b|part|105.00000000000000f3|7|0+4,8+16|104|1|00000000000000a7");
  read = ParseEdge("a/b", EdgeOf("a/b", ask));
  EXPECT_EQ(read->base, 104u);
  EXPECT_TRUE(read->may_be_sent_on);
  EXPECT_EQ(read->holder, 0xa7u);
  ask.box.begin.clear();
  ask.box.extent.clear();
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->box, Box());
  ask.kind = WeightAsk::Kind::kList;
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|list|105.00000000000000f3");
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->birth, 0xf3u);
  for (const auto kind : {WeightAsk::Kind::kReady, WeightAsk::Kind::kSealed,
                          WeightAsk::Kind::kVersion, WeightAsk::Kind::kNewer}) {
    ask.kind = kind;
    ask.number = UINT64_MAX;
    EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->kind, kind);
    EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->number, UINT64_MAX);
  }
  ask.kind = WeightAsk::Kind::kLayouts;
  ask.digest = Digest{1, 2}.ToString();
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->digest, ask.digest);
  ask.kind = WeightAsk::Kind::kNews;
  ask.incarnation = 0xa7;
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|news|00000000000000a7");
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->incarnation, 0xa7u);
  ask.number = 105;
  ask.kind = WeightAsk::Kind::kHolders;
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|holders|105.00000000000000f3|00000000000000a7");
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->incarnation, 0xa7u);
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->birth, 0xf3u);
  ask.kind = WeightAsk::Kind::kHeld;
  ask.owner = 3;
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|held|105.00000000000000f3|3||");
  EXPECT_FALSE(ParseEdge("s", EdgeOf("s", ask))->goes_on);
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->owner, 3u);
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->number, 105u);
  ask.goes_on = true;
  ask.tensor = 7;
  ask.box = {{1, 2}, {3, 4}};
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|held|105.00000000000000f3|3|7|1+3,2+4");
  EXPECT_TRUE(ParseEdge("s", EdgeOf("s", ask))->goes_on);
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->tensor, 7u);
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->box, ask.box);
  const Box point;  // All of a scalar.
  ask.box = point;
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|held|105.00000000000000f3|3|7|");
  EXPECT_TRUE(ParseEdge("s", EdgeOf("s", ask))->goes_on);
  ask.kind = WeightAsk::Kind::kQuestion;
  ask.question = std::string("\0\xff;|", 4);
  EXPECT_EQ(EdgeOf("s", ask), "|weights|s|question|00ff3b7c");
  EXPECT_EQ(ParseEdge("s", EdgeOf("s", ask))->question, ask.question);
}

TEST(AsksTest, OtherEdgesAreRefused) {
  const std::string part = "part|105.00000000000000f3|7|", rest = "|0|0|0000000000000000";
  for (const std::string edge : {"",
                                 "ready",
                                 "ready|",
                                 "ready|x",
                                 "ready|1|2",
                                 "ready|-1",
                                 "ready| 1",
                                 "ready|+1",
                                 "ready|18446744073709551616",
                                 "other|1",
                                 "list|1",
                                 "list|1.f3",
                                 "list|1.00000000000000g3",
                                 "list|1.00000000000000f3|",
                                 "part|1.00000000000000f3|7",
                                 "part|1.00000000000000f3|7|0+1",
                                 "part|1.00000000000000f3|7|0+1|",
                                 "part|1.00000000000000f3|7|0+1|0",
                                 "part|1.00000000000000f3|7|0+1|x|0|0000000000000000",
                                 "part|1.00000000000000f3|7|0+1|0|2|0000000000000000",
                                 "part|1.00000000000000f3|7|0+1|0||0000000000000000",
                                 "part|1.00000000000000f3|7|0+1|0|0|0",
                                 "part|1.00000000000000f3|7|0+1|0|0|0000000000000000|0",
                                 "part|1.00000000000000f3|4294967296||0|0|0000000000000000",
                                 "holders|1.00000000000000f3",
                                 "holders|1.00000000000000f3|1",
                                 "holders|1|00000000000000a7",
                                 "held|1.00000000000000f3",
                                 "held|1.00000000000000f3|3",
                                 "held|1.00000000000000f3|3|",
                                 "held|1.00000000000000f3|3|||",
                                 "held|1.00000000000000f3|3||0+1",
                                 "held|1.00000000000000f3|3|x|0+1",
                                 "held|1.00000000000000f3|3|7|0",
                                 "held|1.00000000000000f3|-1||",
                                 "held|1.00000000000000f3|4294967296||",
                                 "held|1|1||",
                                 "news|",
                                 "news|1",
                                 "news|00000000000000ag",
                                 "question",
                                 "question|0",
                                 "question|0g",
                                 "question|00|00"}) {
    EXPECT_FALSE(ParseEdge("s", "|weights|s|" + edge).ok()) << edge;
  }
  for (const std::string box : {"1", "1+", "+1", "-1+2", "1+-2", "1+2,", "1+9223372036854775808",
                                "1+2+3", "1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1,1+1"}) {
    EXPECT_FALSE(ParseEdge("s", absl::StrCat("|weights|s|", part, box, rest)).ok()) << box;
  }
  EXPECT_TRUE(ParseEdge("s", absl::StrCat("|weights|s|", part, "1+2", rest)).ok());
  EXPECT_FALSE(ParseEdge("t", absl::StrCat("|weights|s|", part, "1+2", rest)).ok());
  const std::string longest(2 * kMaxQuestionBytes, '0');
  EXPECT_TRUE(ParseEdge("s", "|weights|s|question|" + longest).ok());
  EXPECT_FALSE(ParseEdge("s", "|weights|s|question|" + longest + "00").ok());
}

TEST(AsksTest, SetsHavePlainNames) {
  EXPECT_TRUE(CheckSetName("policy/v2_a.b-c").ok());
  for (const std::string name : {"", "a|b", "a;b", "a b", "a\n"}) {
    EXPECT_FALSE(CheckSetName(name).ok()) << name;
  }
  EXPECT_TRUE(CheckSetName(std::string(128, 'a')).ok());
  EXPECT_FALSE(CheckSetName(std::string(129, 'a')).ok());
}

}  // namespace
}  // namespace tryst
