#include "weights/digests.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/doubles/weights/random_layouts.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

TEST(DigestsTest, KnownDigests) {
  // XXH3 of 128 bits of nothing, as its authors give it.
  EXPECT_EQ(DigestOf("").ToString(), "99aa06d3014798d86001c324468d497f");
}

TEST(DigestsTest, EveryProcessorMakesTheSame) {
  std::string bytes;
  for (int i = 0; i < 70'000; ++i) bytes.push_back(static_cast<char>(i * 2654435761u >> 13));
  for (size_t size = 0; size < 2'000; ++size) {
    for (const size_t begin : {0, 1}) {
      ASSERT_EQ(DigestOf(&bytes[begin], size), DigestPortable(&bytes[begin], size)) << size;
    }
  }
  EXPECT_EQ(DigestOf(bytes), DigestPortable(bytes.data(), bytes.size()));
}

TEST(DigestsTest, BlocksOfABox) {
  std::string bytes(3 * kDigestBlockBytes + 5, 'x');
  const std::vector<Digest> blocks = BlockDigests(bytes.data(), bytes.size());
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0], DigestOf(bytes.substr(0, kDigestBlockBytes)));
  EXPECT_EQ(blocks[0], blocks[2]);
  EXPECT_EQ(blocks[3], DigestOf("xxxxx"));
  bytes[kDigestBlockBytes] = 'y';
  const std::vector<Digest> others = BlockDigests(bytes.data(), bytes.size());
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i] == others[i], i != 1);
  EXPECT_TRUE(BlockDigests(nullptr, 0).empty());
  EXPECT_EQ(BlockDigests(bytes.data(), 2 * kDigestBlockBytes).size(), 2u);
}

TEST(DigestsTest, EachThatARootNamesCounts) {
  const std::vector<Digest> few = {{1, 2}}, more = {{1, 2}, {3, 4}};
  const VersionName version = {{5, 6}, 7, 8};
  std::set<std::string> seen;
  const auto differs = [&seen](const Digest& digest) {
    EXPECT_TRUE(seen.insert(digest.ToString()).second);
  };
  differs(BoxDigest(1, few));
  differs(BoxDigest(2, few));
  differs(BoxDigest(1, more));
  differs(ListDigest(version, 0, few));
  differs(ListDigest(version, 1, few));
  differs(ListDigest(version, 0, more));
  differs(RootDigest(version, few));
  differs(RootDigest(version, more));
  for (const VersionName& other : {VersionName{{4, 6}, 7, 8}, VersionName{{5, 4}, 7, 8},
                                   VersionName{{5, 6}, 4, 8}, VersionName{{5, 6}, 7, 4}}) {
    differs(ListDigest(other, 0, few));
    differs(RootDigest(other, few));
  }
}

TEST(DigestsTest, ListsOfReplicasAgree) {
  constexpr uint32_t kOwners = 12;
  Random random(4500040);
  int spoiled = 0;
  for (int i = 0; i < 1000; ++i) {
    std::vector<TensorLayout> layouts;
    for (int n = 0; n < 3; ++n) {
      layouts.push_back(n % 2 == 0 ? RandomPlacedLayout(&random, kOwners)
                                   : RandomBoxedLayout(&random, kOwners));
    }
    // The test takes a number for each box as its digest.
    std::vector<std::vector<Digest>> lists(kOwners);
    for (uint32_t owner = 0; owner < kOwners; ++owner) {
      for (size_t tensor = 0; tensor < layouts.size(); ++tensor) {
        EXPECT_EQ(ListOffsets(layouts, owner)[tensor], lists[owner].size());
        for (const Box& box : BoxesOf(layouts[tensor], owner)) {
          lists[owner].push_back(DigestOf(box.ToString()));
        }
      }
      EXPECT_EQ(ListOffsets(layouts, owner).back(), lists[owner].size());
    }
    ASSERT_TRUE(CheckReplicas(layouts, lists).ok());
    // One owner has another content of one box.
    const uint32_t owner = Below(&random, kOwners);
    if (lists[owner].empty()) continue;
    const size_t at = Below(&random, lists[owner].size());
    lists[owner][at].high ^= 1;
    const std::vector<size_t> offsets = ListOffsets(layouts, owner);
    size_t tensor = 0;
    while (offsets[tensor + 1] <= at) ++tensor;
    const Box box = BoxesOf(layouts[tensor], owner)[at - offsets[tensor]];
    bool shared = false;
    for (const SharedBox& one : SharedBoxes(layouts[tensor], kOwners)) {
      shared |= one.box == box && one.owners.size() > 1;
    }
    const absl::Status checked = CheckReplicas(layouts, lists);
    ASSERT_EQ(checked.ok(), !shared) << checked;
    if (!shared) continue;
    ++spoiled;
    EXPECT_EQ(checked.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(checked.message().find(box.ToString()), absl::string_view::npos) << checked;
  }
  EXPECT_GT(spoiled, 200);
}

TEST(DigestsTest, DigestsTravel) {
  const std::vector<Digest> digests = {{1, 2}, {0x0102030405060708, 0x1112131415161718}};
  const std::string bytes = EncodeDigests(digests);
  EXPECT_EQ(bytes.size(), 32u);
  EXPECT_EQ(bytes.substr(16, 2), "\x08\x07");
  EXPECT_EQ(*DecodeDigests(bytes, 2), digests);
  EXPECT_FALSE(DecodeDigests(bytes, 1).ok());
  EXPECT_FALSE(DecodeDigests(bytes, 3).ok());
  EXPECT_FALSE(DecodeDigests(bytes.substr(1), 2).ok());
  EXPECT_FALSE(DecodeDigests(bytes + "x", 2).ok());
  EXPECT_TRUE(DecodeDigests("", 0)->empty());
}

}  // namespace
}  // namespace tryst
