#include "server/regions/region_asks.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/span_digests.h"

namespace tryst {
namespace {

// All spans of `selection`, after they went through lists; joined where they touch.
std::vector<ByteSpan> ThroughLists(const Selection& selection, uint64_t bytes, size_t most_text,
                                   size_t* lists, uint64_t granule = 0) {
  ListWriter writer(selection, granule, most_text);
  std::vector<ByteSpan> all;
  while (bytes > 0) {
    uint64_t wanted = 0;
    const std::string list = writer.Next(bytes, &wanted);
    ++*lists;
    EXPECT_LE(list.size(), most_text);
    EXPECT_GT(wanted, 0u);
    EXPECT_LE(wanted, kMaxAskBytes);
    const auto parsed = ParseList(list, INT64_MAX);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (!parsed.ok() || wanted == 0) return all;
    EXPECT_EQ(parsed->bytes, wanted);
    EXPECT_EQ(parsed->granule, granule);
    for (const ByteSpan& span : parsed->spans) {
      if (!all.empty() && all.back().offset + all.back().bytes == span.offset) {
        all.back().bytes += span.bytes;
      } else {
        all.push_back(span);
      }
    }
    bytes -= wanted;
  }
  return all;
}

TEST(RegionAsksTest, ListsSayWhatTheSelectionSays) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const uint64_t grain = uint64_t{1} << (random() % 20);
    std::vector<ByteSpan> spans(random() % 3000), joined;
    uint64_t bytes = 0;
    for (ByteSpan& span : spans) {
      span = {random() % (uint64_t{1} << 40) / grain * grain, random() % 5 * grain};
      if (random() % 3 == 0 && !joined.empty()) {
        span.offset = joined.back().offset + joined.back().bytes;
      }
      bytes += span.bytes;
      if (span.bytes == 0) continue;
      if (!joined.empty() && joined.back().offset + joined.back().bytes == span.offset) {
        joined.back().bytes += span.bytes;
      } else {
        joined.push_back(span);
      }
    }
    size_t lists = 0;
    const auto got = ThroughLists(Selection::Spans(spans), bytes,
                                  kMinListText + random() % (kMaxListText - kMinListText), &lists,
                                  seed % 2 == 0 ? 0 : kMinGranule + random() % kMaxGranule / 2);
    ASSERT_EQ(got.size(), joined.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].offset, joined[i].offset);
      ASSERT_EQ(got[i].bytes, joined[i].bytes);
    }
  }
}

TEST(RegionAsksTest, AThousandBlocksAreFewLists) {
  std::vector<uint32_t> blocks(1000);
  std::mt19937 random(1);
  for (uint32_t& block : blocks) block = random() % 100'000;
  size_t lists = 0;
  ThroughLists(Selection::Indices(blocks, 64), 64'000, kMaxListText, &lists);
  EXPECT_LE(lists, 2u);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint32_t>(i);
  lists = 0;
  ThroughLists(Selection::Indices(blocks, 4096), 4'096'000, kMinListText, &lists);
  EXPECT_EQ(lists, 1u) << "neighbours are one span";
}

void IsNoList(absl::string_view list, uint64_t region_bytes = 1 << 20) {
  const auto parsed = ParseList(list, region_bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << list << ": " << parsed.status();
}

TEST(RegionAsksTest, AHostileListIsRefused) {
  // "A" is 0, "B" is 1; a gap of "C" is 1, of "B" -1.
  EXPECT_EQ(ParseList("AAB", 1 << 20)->bytes, 1u);
  EXPECT_EQ(ParseList("ACB", 2)->spans[0].offset, 1u);
  EXPECT_EQ(ParseList("A", 0)->bytes, 0u);
  IsNoList("");
  IsNoList("AA");   // A gap, and no bytes.
  IsNoList("AAA");  // A span of no bytes.
  IsNoList("AAg");  // A number that goes on.
  IsNoList("A|B");
  IsNoList("ABB");     // Before the region.
  IsNoList("ACB", 1);  // Behind it.
  IsNoList("AAC", 1);
  IsNoList("RAB");  // Units of more than 64 KiB.
  IsNoList("AA_______________");
  IsNoList("A_____________BB");             // More than 64 bits.
  IsNoList("AAggggggggggggP", UINT64_MAX);  // Much at once.
  EXPECT_EQ(ParseList(".gCAAB", 1 << 20)->granule, kMinGranule);
  IsNoList(".");
  IsNoList(".AAAB");
  IsNoList("._BAAB");      // A granule of 63 bytes,
  IsNoList(".hgggBAAB");   // and of one more than there may be.
  std::string much = "Q";  // Units of 64 KiB: 65 of them.
  for (int i = 0; i < 65; ++i) much += i == 0 ? "AB" : "BB";
  IsNoList(much);
}

TEST(RegionAsksTest, Names) {
  EXPECT_EQ(RegionEdge("l1"), "|region|l1|");
  EXPECT_EQ(RegionNameOf("|region|l1|AAB"), "l1");
  EXPECT_EQ(RegionNameOf("|weights|l1|AAB"), "");
  EXPECT_TRUE(CheckRegionName("layer 0/k").ok());
  for (const std::string& name :
       {std::string(), std::string("a|b"), std::string("a;b"), std::string("a\n"),
        std::string("\xc3\xa4"), std::string(kMaxRegionName + 1, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckRegionName(name))) << name;
  }
}

}  // namespace
}  // namespace tryst
