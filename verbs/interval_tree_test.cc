#include "verbs/interval_tree.h"

#include <list>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tryst {
namespace {

using Tree = IntervalTree<int>;

struct Plain {
  uint64_t begin;
  uint64_t end;
  int value;
  Tree::Node* node;
};

bool Any(int) { return true; }

TEST(IntervalTreeTest, BothEndsCount) {
  Tree tree;
  tree.Insert(100, 200, 1);
  EXPECT_NE(tree.FindContaining(100, 200, Any), nullptr);
  EXPECT_NE(tree.FindContaining(150, 151, Any), nullptr);
  EXPECT_EQ(tree.FindContaining(99, 101, Any), nullptr);
  EXPECT_EQ(tree.FindContaining(199, 201, Any), nullptr);
  EXPECT_EQ(tree.FindContaining(50, 300, Any), nullptr);
  EXPECT_EQ(tree.FindContaining(100, 200, [](int value) { return value == 2; }), nullptr);
  int overlapping = 0;
  const auto count = [&overlapping](const Tree::Node&) { ++overlapping; };
  tree.ForEachOverlapping(0, 100, count);
  tree.ForEachOverlapping(200, 300, count);
  EXPECT_EQ(overlapping, 0);
  tree.ForEachOverlapping(0, 101, count);
  tree.ForEachOverlapping(199, 200, count);
  EXPECT_EQ(overlapping, 2);
}

// A short range that begins later must not hide the long one around it.
TEST(IntervalTreeTest, LongRangeBehindShortOnesIsFound) {
  Tree tree;
  tree.Insert(0, 1000, 1);
  for (uint64_t at = 1; at < 900; at += 10) tree.Insert(at, at + 5, 2);
  Tree::Node* const found = tree.FindContaining(899, 999, Any);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->value, 1);
}

TEST(IntervalTreeTest, AgreesWithAList) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](uint64_t below) { return random() % below; };
    Tree tree;
    std::list<Plain> plain;
    for (int turn = 0; turn < 2000; ++turn) {
      const uint64_t begin = draw(500);
      const uint64_t end = begin + 1 + draw(1 + draw(120));
      if (draw(100) < (turn < 1000 ? 60 : 40)) {
        const int value = static_cast<int>(draw(3));
        plain.push_back({begin, end, value, tree.Insert(begin, end, value)});
      } else if (!plain.empty()) {
        auto victim = std::next(plain.begin(), static_cast<int64_t>(draw(plain.size())));
        tree.Remove(victim->node);
        plain.erase(victim);
      }
      ASSERT_EQ(tree.size(), plain.size());

      const int wanted = static_cast<int>(draw(3));
      const Tree::Node* const found =
          tree.FindContaining(begin, end, [wanted](int value) { return value == wanted; });
      bool exists = false;
      size_t overlapping = 0;
      for (const Plain& p : plain) {
        exists |= p.value == wanted && p.begin <= begin && p.end >= end;
        overlapping += p.begin < end && p.end > begin ? 1 : 0;
      }
      ASSERT_EQ(found != nullptr, exists) << "seed " << seed << " turn " << turn;
      if (found != nullptr) {
        ASSERT_LE(found->begin(), begin);
        ASSERT_GE(found->end(), end);
        ASSERT_EQ(found->value, wanted);
      }
      uint64_t last = 0;
      tree.ForEachOverlapping(begin, end, [&](const Tree::Node& node) {
        --overlapping;
        ASSERT_LT(node.begin(), end);
        ASSERT_GT(node.end(), begin);
        ASSERT_GE(node.begin(), last);
        last = node.begin();
      });
      ASSERT_EQ(overlapping, 0u) << "seed " << seed << " turn " << turn;
    }
  }
}

// Insertions in order and in reverse, which turn a plain binary tree into a list: its recursion
// would overflow the stack.
TEST(IntervalTreeTest, StaysShallow) {
  constexpr uint64_t kMany = 100'000;
  Tree up;
  Tree down;
  for (uint64_t i = 0; i < kMany; ++i) {
    up.Insert(i, i + 1, 0);
    down.Insert(kMany - i, kMany - i + 1, 0);
  }
  for (uint64_t i = 1; i < kMany; i += 100) {
    ASSERT_EQ(up.FindContaining(i, i + 1, Any)->begin(), i);
    ASSERT_EQ(down.FindContaining(i, i + 1, Any)->begin(), i);
  }
}

}  // namespace
}  // namespace tryst
