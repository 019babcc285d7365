#include "weights/chain.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

PartName Part(uint32_t tensor = 0, WeightVersion version = {5, 0xf3}) {
  return {version, tensor, {{0, 8}, {4, 16}}};
}
Holder Member(int number) { return {absl::StrCat("m", number), static_cast<uint64_t>(number)}; }

TEST(PartChainTest, TheBytesGoFromOneToTheNext) {
  PartChain chain;
  EXPECT_EQ(chain.Next(Part(), Member(1), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(), Member(2), true), Member(1));
  EXPECT_EQ(chain.Next(Part(), Member(3), true), Member(2));
  // Another part, or the same one of another version, has a chain of its own.
  EXPECT_EQ(chain.Next(Part(1), Member(3), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(0, {6, 0xf3}), Member(3), true), std::nullopt);
  EXPECT_EQ(chain.links(), 5u);
}

TEST(PartChainTest, WhoComesBackGetsTheBytesAndTheOtherIsAHolderNoMore) {
  PartChain chain;
  EXPECT_EQ(chain.Next(Part(), Member(1), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(), Member(2), true), Member(1));
  EXPECT_EQ(chain.Next(Part(), Member(2), false), std::nullopt);
  EXPECT_EQ(chain.Next(Part(), Member(3), true), Member(2));
  EXPECT_EQ(chain.Next(Part(), Member(4), true), Member(3));
  EXPECT_EQ(chain.Next(Part(), Member(4), true), std::nullopt);  // Once is once.
  // Member 3 was given up by member 4, not by what it asks next.
  EXPECT_EQ(chain.Next(Part(), Member(3), false), std::nullopt);
  EXPECT_EQ(chain.Next(Part(), Member(5), true), Member(4));
  // Where nobody else has it, the owner sends it.
  EXPECT_EQ(chain.Next(Part(1), Member(1), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(1), Holder{"b", 0}, true), Member(1));
  EXPECT_EQ(chain.Next(Part(1), Holder{"b", 0}, false), std::nullopt);
  EXPECT_EQ(chain.Next(Part(1), Holder{"c", 0}, true), std::nullopt);
  // Another life of the same worker is somebody else.
  EXPECT_EQ(chain.Next(Part(), Holder{"m5", 50}, true), Member(5));
}

TEST(PartChainTest, ItKnowsWhoHasAskedToHavePartsForOthers) {
  PartChain chain;
  chain.Next(Part(), Member(1), true);
  chain.Next(Part(), Member(2), true);
  chain.Next(Part(), Holder{"m3", 0}, true);
  chain.Next(Part(1), Member(2), true);
  chain.Next(Part(), Holder{"m1", 10}, true);
  EXPECT_EQ(chain.HoldersOf({5, 0xf3}), (std::vector<Holder>{{"m1", 10}, {"m2", 2}}));
  EXPECT_TRUE(chain.HoldersOf({5, 0xf4}).empty());
  EXPECT_TRUE(chain.HoldersOf({6, 0xf3}).empty());
  for (int i = 0; i < static_cast<int>(kMaxHolders); ++i) chain.Next(Part(), Member(100 + i), true);
  EXPECT_EQ(chain.HoldersOf({5, 0xf3}).size(), kMaxHolders);
  chain.Forget({5, 0xf3});
  EXPECT_TRUE(chain.HoldersOf({5, 0xf3}).empty());
}

TEST(PartChainTest, WhoHasNothingForOthersIsSentOnAndNobodyToIt) {
  PartChain chain;
  EXPECT_EQ(chain.Next(Part(), Holder{"a", 0}, true), std::nullopt);
  EXPECT_EQ(chain.links(), 0u);
  EXPECT_EQ(chain.Next(Part(), Member(1), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(), Holder{"b", 0}, true), Member(1));
  EXPECT_EQ(chain.Next(Part(), Member(2), true), Member(1));
  EXPECT_EQ(chain.Next(Part(), Holder{"c", 0}, true), Member(2));
  EXPECT_EQ(chain.Next(Part(), Holder{"d", 0}, true), Member(2));
  EXPECT_EQ(chain.Next(Part(), Holder{"e", 0}, true), Member(2));
  EXPECT_EQ(chain.Next(Part(), Holder{"g", 0}, true), Member(1));
  EXPECT_EQ(chain.Next(Part(), Member(3), false), std::nullopt);
  EXPECT_EQ(chain.Next(Part(), Holder{"f", 0}, true), Member(3));
}

TEST(PartChainTest, WhatIsOverIsForgotten) {
  PartChain chain(3 * PartChain::kLinkBytes + 2 * PartChain::kPartBytes +
                  2 * PartChain::kAskerBytes);
  const Digest digest{1, 2};
  EXPECT_EQ(chain.Next(Part(), Member(1), true), std::nullopt);
  chain.KeepDigest(Part(), digest);
  chain.KeepDigest(Part(1), digest);  // Nobody has asked for it.
  EXPECT_EQ(chain.FindDigest(Part()), digest);
  EXPECT_EQ(chain.FindDigest(Part(1)), std::nullopt);
  EXPECT_EQ(chain.FindDigest(Part(0, {5, 0xf4})), std::nullopt);
  EXPECT_EQ(chain.Next(Part(1), Member(1), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(1), Member(2), true), Member(1));
  // There is no room, whatever is asked for and whoever asks.
  EXPECT_EQ(chain.Next(Part(1), Member(3), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(2), Member(1), true), std::nullopt);
  chain.KeepDigest(Part(2), digest);
  EXPECT_EQ(chain.FindDigest(Part(2)), std::nullopt);
  EXPECT_EQ(chain.links(), 3u);
  chain.Forget({5, 0xf4});
  EXPECT_EQ(chain.links(), 3u);
  chain.Forget({5, 0xf3});
  EXPECT_EQ(chain.links(), 0u);
  EXPECT_EQ(chain.FindDigest(Part()), std::nullopt);
  // Another birth takes the place of what has its number.
  EXPECT_EQ(chain.Next(Part(), Member(1), true), std::nullopt);
  EXPECT_EQ(chain.Next(Part(0, {5, 0xf4}), Member(2), true), std::nullopt);
  EXPECT_EQ(chain.links(), 1u);
}

TEST(ReferralTest, WhatIsSaidComesBack) {
  Referral referral{{"/job:m/task:1", 0xa700000000000001}, Digest{3, 4}};
  auto read = DecodeReferral(EncodeReferral(referral));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->holder, referral.holder);
  EXPECT_EQ(read->digest, referral.digest);
  referral.digest.reset();
  read = DecodeReferral(EncodeReferral(referral));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->holder, referral.holder);
  EXPECT_EQ(read->digest, std::nullopt);
}

TEST(ReferralTest, OtherBytesAreRefused) {
  const std::string good = EncodeReferral({{"m", 1}, Digest{3, 4}});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(DecodeReferral(absl::string_view(good).substr(0, size)).ok()) << size;
  }
  std::string two = good + std::string(32, 'x');
  two[8] = 2;
  EXPECT_FALSE(DecodeReferral(two).ok());
  EXPECT_TRUE(DecodeReferral(EncodeReferral({{std::string(512, 'm'), 1}, {}})).ok());
  EXPECT_FALSE(DecodeReferral(EncodeReferral({{std::string(513, 'm'), 1}, {}})).ok());
}

}  // namespace
}  // namespace tryst
