#include "rendezvous/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rendezvous/counters.h"

namespace tryst {
namespace {

WaitingItem Waiting(const std::string& edge, WaitingItem::Kind kind, int64_t since_ns) {
  WaitingItem item;
  item.step_id = 7;
  item.key = *TensorKey::Parse(
      "/job:a/replica:0/task:0/device:CPU:0;0000000000000001;"
      "/job:a/replica:0/task:1/device:CPU:0;" +
      edge + ";0:0");
  item.kind = kind;
  item.since_ns = since_ns;
  return item;
}

WaitingItems All(const std::vector<WaitingItem>& items, size_t most = 10) {
  WaitingItems all(most);
  for (const WaitingItem& item : items) all.Add(item.since_ns, [&] { return item; });
  return all;
}

TEST(Waiting, TextHasOneLineEachLongestFirst) {
  WaitingItem send = Waiting("x", WaitingItem::Kind::kSend, 2'000'000);
  send.bytes = 64;
  const std::string text =
      WaitingText(All({send, Waiting("y\n", WaitingItem::Kind::kReceive, 1'000'000)}), 4'500'000);
  EXPECT_EQ(text,
            "step 7: receive of /job:a/replica:0/task:0/device:CPU:0;0000000000000001;"
            "/job:a/replica:0/task:1/device:CPU:0;y\\n;0:0 waits 3.500 ms for "
            "/job:a/replica:0/task:0/device:CPU:0\n"
            "step 7: send of /job:a/replica:0/task:0/device:CPU:0;0000000000000001;"
            "/job:a/replica:0/task:1/device:CPU:0;x;0:0 waits 2.500 ms for "
            "/job:a/replica:0/task:1/device:CPU:0 (64 bytes)\n");
}

TEST(Waiting, JsonEscapesWhateverAnEdgeIsCalled) {
  const std::string json =
      WaitingJson(All({Waiting("q\"\\\n\xff", WaitingItem::Kind::kReceive, 0)}), 1'000'000);
  EXPECT_EQ(json,
            "{\"waiting\":[{\"step\":7,\"kind\":\"receive\",\"key\":\"/job:a/replica:0/task:0/"
            "device:CPU:0;0000000000000001;/job:a/replica:0/task:1/device:CPU:0;q\\\"\\\\\\u000a"
            "\\u00ff;0:0\",\"waits_for\":\"/job:a/replica:0/task:0/device:CPU:0\",\"ms\":1.000,"
            "\"dead\":false,\"bytes\":0}],\"waiting_left_out\":0}");
  EXPECT_EQ(WaitingJson(All({}), 0), "{\"waiting\":[],\"waiting_left_out\":0}");
}

TEST(Waiting, TheLongestWaitsAreKeptAndTheOthersCounted) {
  std::vector<WaitingItem> items;
  for (const int64_t since_ns : {5, 2, 9, 1, 7, 3}) {
    items.push_back(Waiting("e", WaitingItem::Kind::kSend, since_ns));
  }
  WaitingItems kept = All(items, 3);
  EXPECT_EQ(kept.left_out(), 3u);
  const std::string text = WaitingText(kept, 0);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_EQ(text.substr(text.find("\nand ") + 1), "and 3 younger sends and receives\n");
  std::vector<int64_t> since_ns;
  for (const WaitingItem& item : kept.Take()) since_ns.push_back(item.since_ns);
  EXPECT_EQ(since_ns, std::vector<int64_t>({1, 2, 3}));
  WaitingItems none = All(items, 0);
  EXPECT_EQ(none.left_out(), 6u);
  EXPECT_TRUE(none.Take().empty());
}

TEST(Waiting, OneThatIsLeftOutIsNotMade) {
  WaitingItems items = All({Waiting("e", WaitingItem::Kind::kSend, 5)}, 1);
  items.Add(5, []() -> WaitingItem {
    ADD_FAILURE() << "it has waited no longer";
    return {};
  });
  EXPECT_EQ(items.left_out(), 1u);
}

TEST(Counters, TextAndSumCoverEveryRow) {
  RendezvousCounters counters;
  for (int i = 0; i < kCounterRowCount; ++i) counters.*kCounterRows[i].value = i + 1;
  RendezvousCounters sum = counters;
  sum += counters;
  for (int i = 0; i < kCounterRowCount; ++i) EXPECT_EQ(sum.*kCounterRows[i].value, 2 * (i + 1));
  const std::string text = counters.ToText();
  EXPECT_EQ(text.substr(0, 19), "sends 1\nreceives 2\n");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kCounterRowCount);
}

}  // namespace
}  // namespace tryst
