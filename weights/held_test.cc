#include "weights/held.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "weights/boxes.h"
#include "weights/holders.h"

namespace tryst {
namespace {

bool Anybody(uint32_t) { return true; }

Box Rows(int64_t begin, int64_t rows) { return {{begin, 0}, {rows, 8}}; }
Box Columns(int64_t begin, int64_t columns) { return {{0, begin}, {8, columns}}; }

TEST(HeldTest, WhatAMemberHasArrivesAsItWas) {
  HeldParts sent;
  sent.list = {{1, 2}, {3, 4}};
  const Box point;
  sent.parts = {{7, Rows(2, 3), Digest{5, UINT64_MAX}},
                {8, point, std::nullopt},
                {UINT32_MAX, {{INT64_MAX}, {0}}, std::nullopt}};
  const auto came = DecodeHeld(EncodeHeld(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_EQ(came->list, sent.list);
  EXPECT_EQ(came->parts, sent.parts);
  EXPECT_TRUE(DecodeHeld(EncodeHeld({}))->parts.empty());
}

TEST(HeldTest, OtherBytesAreRefused) {
  HeldParts held;
  held.list = {{1, 2}};
  held.parts = {{7, Rows(2, 3), std::nullopt}};
  const std::string bytes = EncodeHeld(held);
  const size_t list = 4 + Digest::kBytes;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeHeld(bytes.substr(0, size)).ok(), size == list) << size;
  }
  EXPECT_FALSE(DecodeHeld(bytes + '\0').ok());
  std::string other = bytes;
  other[list + 5] = TensorShape::kMaxRank + 1;
  EXPECT_FALSE(DecodeHeld(other + std::string(1024, '\0')).ok());
  other = bytes;
  other[list + 13] = '\x80';  // It begins below 0.
  EXPECT_FALSE(DecodeHeld(other).ok());
  other = bytes;
  other[list + 4] = 2;  // It has two digests.
  EXPECT_FALSE(DecodeHeld(other + std::string(1024, '\0')).ok());
  held.parts[0].digest = Digest{1, 2};
  const std::string with_digest = EncodeHeld(held);
  for (size_t size = 0; size < with_digest.size(); ++size) {
    EXPECT_EQ(DecodeHeld(with_digest.substr(0, size)).ok(), size == list) << size;
  }
  held.parts[0].box.begin[0] = INT64_MAX - 2;  // It ends above all numbers.
  EXPECT_FALSE(DecodeHeld(EncodeHeld(held)).ok());
  const Box point;
  held.parts.assign(kMaxHeldParts, {0, point, std::nullopt});
  EXPECT_TRUE(DecodeHeld(EncodeHeld(held)).ok());
  held.parts.push_back({0, point, std::nullopt});
  EXPECT_FALSE(DecodeHeld(EncodeHeld(held)).ok());
  held.parts.clear();
  held.list.resize(LayoutLimits::kMaxBoxes + 1);
  EXPECT_FALSE(DecodeHeld(EncodeHeld(held)).ok());
}

TEST(HeldTest, HoldersArriveAsTheyWere) {
  const std::vector<Holder> sent = {{"/job:m/task:0", UINT64_MAX}, {"b", 1}};
  const std::string bytes = EncodeHolders(sent);
  EXPECT_EQ(*DecodeHolders(bytes), sent);
  EXPECT_TRUE(DecodeHolders("")->empty());
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeHolders(bytes.substr(0, size)).ok(), size == bytes.size() - 11) << size;
  }
  EXPECT_TRUE(DecodeHolders(EncodeHolders({{std::string(kMaxWorkerBytes, 'a'), 1}})).ok());
  EXPECT_FALSE(DecodeHolders(EncodeHolders({{std::string(kMaxWorkerBytes + 1, 'a'), 1}})).ok());
  EXPECT_FALSE(DecodeHolders(EncodeHolders({{"", 1}})).ok());
  std::vector<Holder> many(kMaxHolders, sent[1]);
  EXPECT_TRUE(DecodeHolders(EncodeHolders(many)).ok());
  many.push_back(sent[1]);
  EXPECT_FALSE(DecodeHolders(EncodeHolders(many)).ok());
}

TEST(KnownHoldersTest, TheLastOnesThatWereHeardOfAreKnown) {
  constexpr WeightVersion kFive{5, 0xf5}, kSix{6, 0xf6};
  KnownHolders known;
  known.Add(kFive, {"a", 1}, false);
  known.Add(kFive, {"b", 2}, true);
  known.Add(kFive, {"c", 0}, true);  // It has nothing for others.
  known.Add(kSix, {"d", 4}, false);
  EXPECT_EQ(known.Of(kFive), (std::vector<Holder>{{"b", 2}, {"a", 1}}));
  EXPECT_TRUE(known.Of({5, 0xff}).empty());
  // Its next life says so itself; others may have heard of the one before.
  known.Add(kFive, {"a", 3}, true);
  known.Add(kFive, {"a", 1}, false);
  EXPECT_EQ(known.Of(kFive), (std::vector<Holder>{{"a", 3}, {"b", 2}}));
  known.Remove(kFive, {"a", 1});
  known.Remove(kFive, {"b", 2});
  known.Remove({5, 0xff}, {"a", 3});
  EXPECT_EQ(known.Of(kFive), (std::vector<Holder>{{"a", 3}}));
  known.KeepOnly([&](const WeightVersion& version) { return version == kSix; });
  EXPECT_TRUE(known.Of(kFive).empty());
  EXPECT_EQ(known.Of(kSix).size(), 1u);
  known.Add({6, 0xff}, {"e", 5}, false);  // The number came again.
  EXPECT_TRUE(known.Of(kSix).empty());
}

TEST(KnownHoldersTest, ThereIsABound) {
  KnownHolders known;
  for (uint64_t i = 1; i <= kMaxHolders + 10; ++i) {
    known.Add({5, 0xf5}, {std::to_string(i), i}, true);
  }
  const std::vector<Holder> of = known.Of({5, 0xf5});
  ASSERT_EQ(of.size(), kMaxHolders);
  EXPECT_EQ(of.front().incarnation, kMaxHolders + 10);
  EXPECT_EQ(of.back().incarnation, 11u);
  for (uint64_t number = 6; number < 6 + KnownHolders::kMaxVersions; ++number) {
    known.Add({number, 1}, {"a", 1}, true);
  }
  EXPECT_TRUE(known.Of({5, 0xf5}).empty());
  EXPECT_EQ(known.Of({6, 1}).size(), 1u);
  known.Add({5, 0xf5}, {"a", 1}, true);  // All others are newer.
  EXPECT_TRUE(known.Of({5, 0xf5}).empty());
  EXPECT_EQ(known.Of({6, 1}).size(), 1u);
}

TEST(BoxCoverTest, AWholeBoxIsOnePart) {
  BoxCover cover(Rows(0, 8));
  EXPECT_FALSE(cover.Choose(Anybody).has_value());
  cover.Add(Rows(0, 4), 1);
  EXPECT_FALSE(cover.Choose(Anybody).has_value());
  cover.Add(Rows(0, 8), 2);
  cover.Add(Rows(0, 8), 3);
  const auto chosen = cover.Choose(Anybody);
  ASSERT_TRUE(chosen.has_value());
  ASSERT_EQ(chosen->size(), 1u);
  EXPECT_EQ((*chosen)[0].box, Rows(0, 8));
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{2, 3}));
  const auto of_one = cover.Choose([](uint32_t holder) { return holder == 3; });
  ASSERT_TRUE(of_one.has_value());
  EXPECT_EQ((*of_one)[0].holders, (std::vector<uint32_t>{3}));
  EXPECT_FALSE(cover.Choose([](uint32_t holder) { return holder == 1; }).has_value());
}

TEST(BoxCoverTest, PartsThatAreCutDifferentlyMakeABox) {
  BoxCover cover(Rows(0, 8));
  cover.Add(Rows(0, 5), 1);
  cover.Add(Columns(0, 4), 2);
  EXPECT_FALSE(cover.Choose(Anybody).has_value());
  cover.Add({{5, 4}, {3, 3}}, 3);
  EXPECT_FALSE(cover.Choose(Anybody).has_value()) << "a column of three rows is missing";
  cover.Add({{5, 7}, {3, 1}}, 4);
  const auto chosen = cover.Choose(Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen->size(), 4u);
}

TEST(BoxCoverTest, WhatIsOfNoUseIsForgotten) {
  BoxCover cover(Rows(2, 4));
  cover.Add(Rows(0, 8), 1);        // More than the box.
  cover.Add({{2}, {4}}, 1);        // It has another rank.
  cover.Add({{2, 0}, {0, 8}}, 1);  // Nothing.
  EXPECT_FALSE(cover.Choose(Anybody).has_value());
  const Box point;
  BoxCover scalar(point);
  scalar.Add(point, 5);
  ASSERT_TRUE(scalar.Choose(Anybody).has_value());
  EXPECT_EQ((*scalar.Choose(Anybody))[0].holders, (std::vector<uint32_t>{5}));
}

// Nobody has some of the box, so parts count by their owner's digests.
TEST(BoxCoverTest, WhatIsWantedOfABoxIsCoveredByPartsWithDigests) {
  BoxCover cover(Rows(0, 8));
  cover.Add(Columns(0, 4), 1, Digest{1, 1});
  cover.Add(Rows(0, 3), 2, Digest{2, 2});
  EXPECT_FALSE(cover.Choose(Anybody).has_value());
  EXPECT_FALSE(cover.Choose(Rows(2, 3), Anybody).has_value());
  // Two parts, and no more of either than there is.
  auto chosen = cover.Choose({{1, 1}, {2, 6}}, Anybody);
  ASSERT_TRUE(chosen.has_value());
  ASSERT_EQ(chosen->size(), 1u);
  EXPECT_EQ((*chosen)[0].box, Rows(0, 3));
  EXPECT_EQ((*chosen)[0].digest, (Digest{2, 2}));
  chosen = cover.Choose({{1, 1}, {5, 3}}, Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].box, Columns(0, 4));
  // The part itself is better than a larger one.
  cover.Add({{1, 1}, {5, 3}}, 3, Digest{3, 3});
  chosen = cover.Choose({{1, 1}, {5, 3}}, Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{3}));
  chosen = cover.Choose({{1, 1}, {5, 3}}, [](uint32_t holder) { return holder != 3; });
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{1}));
  chosen = cover.Choose({{0, 2}, {8, 2}}, Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen->size(), 1u);
  // Without a digest a part counts for the whole box alone.
  BoxCover without(Rows(0, 8));
  without.Add(Rows(0, 4), 1);
  EXPECT_FALSE(without.Choose(Rows(1, 1), Anybody).has_value());
}

TEST(BoxCoverTest, WhereDigestsDifferThoseOfMostHoldersCount) {
  BoxCover cover(Rows(0, 8));
  cover.Add(Rows(0, 4), 1, Digest{9, 9});
  cover.Add(Rows(0, 4), 2, Digest{1, 1});
  cover.Add(Rows(0, 4), 3);
  cover.Add(Rows(0, 4), 4, Digest{1, 1});
  auto chosen = cover.Choose(Rows(0, 2), Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ((*chosen)[0].digest, (Digest{1, 1}));
  chosen = cover.Choose(Rows(0, 2), [](uint32_t holder) { return holder % 2 == 1; });
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{1}));
  // They do not have it after all, and then nobody has.
  cover.Forget(Rows(0, 4), {4, 2});
  chosen = cover.Choose(Rows(0, 2), Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{1}));
  cover.Forget(Rows(0, 4), {1, 7});
  EXPECT_FALSE(cover.Choose(Rows(0, 2), Anybody).has_value());
  cover.Forget(Rows(0, 4), {3});
  cover.Forget(Rows(0, 4), {3});
}

TEST(BoxCoverTest, AHolderHasOneVoice) {
  BoxCover cover(Rows(0, 8));
  for (size_t i = 0; i < BoxCover::kMaxHoldersOfPart; ++i) cover.Add(Rows(0, 4), 0, Digest{9, 9});
  for (uint32_t holder = 1; holder <= 3; ++holder) cover.Add(Rows(0, 4), holder, Digest{1, 1});
  const auto chosen = cover.Choose(Rows(0, 2), Anybody);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ((*chosen)[0].digest, (Digest{1, 1}));
  EXPECT_EQ((*chosen)[0].holders, (std::vector<uint32_t>{1, 2, 3}));
}

TEST(BoxCoverTest, ItHasABound) {
  const int64_t many = static_cast<int64_t>(BoxCover::kMaxParts) + 100;
  BoxCover cover({{0}, {many}});
  for (int64_t i = 0; i < many; ++i) cover.Add({{i}, {1}}, 1);
  EXPECT_FALSE(cover.Choose(Anybody).has_value()) << "the last ones are not remembered";
  BoxCover one({{0}, {1}});
  for (uint32_t i = 0; i < 100; ++i) one.Add({{0}, {1}}, i);
  EXPECT_EQ((*one.Choose(Anybody))[0].holders.size(), BoxCover::kMaxHoldersOfPart);
}

// Whether there is a cover, and what it has, told by looking at every element.
TEST(BoxCoverTest, ItFindsACoverWhereThereIsOne) {
  std::mt19937_64 random(7'000'000'001);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % limit); };
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    const Box box{{below(5), below(5), below(3)}, {1 + below(5), 1 + below(5), 1 + below(3)}};
    BoxCover cover(box);
    std::vector<Box> added;
    for (int64_t i = below(30); i > 0; --i) {
      Box part = box;
      for (int dim = 0; dim < 3; ++dim) {
        const int64_t first = below(box.extent[dim]);
        part.begin[dim] += first;
        part.extent[dim] = 1 + below(box.extent[dim] - first);
      }
      cover.Add(part, 1);
      added.push_back(part);
    }
    const auto everywhere = [&](const auto& has) {
      for (int64_t i = 0; i < box.elements(); ++i) {
        const Box element{
            {box.begin[0] + i / (box.extent[1] * box.extent[2]),
             box.begin[1] + i / box.extent[2] % box.extent[1], box.begin[2] + i % box.extent[2]},
            {1, 1, 1}};
        if (!has(element)) return false;
      }
      return true;
    };
    const bool there_is = everywhere([&](const Box& element) {
      return std::any_of(added.begin(), added.end(),
                         [&](const Box& part) { return Contains(part, element); });
    });
    const auto chosen = cover.Choose(Anybody);
    ASSERT_EQ(chosen.has_value(), there_is) << "round " << round;
    if (!there_is) continue;
    ++found;
    ASSERT_TRUE(everywhere([&](const Box& element) {
      return std::any_of(chosen->begin(), chosen->end(),
                         [&](const BoxCover::Part& part) { return Contains(part.box, element); });
    })) << "round "
        << round;
  }
  EXPECT_GT(found, 200);
}

}  // namespace
}  // namespace tryst
