#include "channel/ops/ring_line.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <random>

#include "gtest/gtest.h"

namespace tryst {
namespace {

TEST(RingLineTest, DoesWhatADequeDoes) {
  std::mt19937 random(1);
  RingLine<int> line;
  std::deque<int> model;
  for (int i = 0; i < 20'000; ++i) {
    // Grows for a while, then shrinks, so that the ring wraps at every size.
    if (random() % 10 < (i / 100 % 2 == 0 ? 6u : 4u)) {
      line.push_back(i);
      model.push_back(i);
    } else if (!model.empty() && random() % 8 == 0) {
      const int gone = model[random() % model.size()];
      line.Remove(gone);
      model.erase(std::find(model.begin(), model.end(), gone));
      line.Remove(-1);  // It is not in the line.
    } else if (!model.empty()) {
      ASSERT_EQ(line.front(), model.front());
      ASSERT_EQ(line.back(), model.back());
      line.pop_front();
      model.pop_front();
    }
    ASSERT_EQ(line.size(), model.size());
    for (size_t k = 0; k < model.size(); ++k) ASSERT_EQ(line[k], model[k]);
  }
}

TEST(RingLineTest, LetsGoOfWhatItNoLongerHas) {
  auto thing = std::make_shared<int>(1);
  RingLine<std::shared_ptr<int>> line;
  for (int i = 0; i < 20; ++i) line.push_back(thing);
  line.pop_front();
  EXPECT_EQ(thing.use_count(), 20);
  line.Remove(thing);  // One of them.
  EXPECT_EQ(thing.use_count(), 19);
  line.clear();
  EXPECT_EQ(thing.use_count(), 1);
}

}  // namespace
}  // namespace tryst
