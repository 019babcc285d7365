// A peer chooses the keys that it sends or asks for. It knows how they are hashed, too.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/colliding_keys.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

constexpr int kKeys = 100'000;

TEST(KeyFlood, WhoDoesNotKnowTheSecretMakesNoKeysOfOneHash) {
  std::set<uint64_t> hashes;
  std::vector<int> buckets(1 << 17);
  int longest = 0;
  for (const TensorKey& key : CollidingKeys(kKeys)) {
    hashes.insert(key.hash());
    longest = std::max(longest, ++buckets[key.hash() & (buckets.size() - 1)]);
  }
  EXPECT_EQ(hashes.size(), size_t{kKeys});
  EXPECT_LE(longest, 16) << "a chain of a table of so many keys";
}

// If they did, this would take minutes.
TEST(KeyFlood, ATableOfSuchKeysIsAsFastAsAnother) {
  const std::vector<TensorKey> keys = CollidingKeys(kKeys);
  VirtualAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kKeys; ++i) ASSERT_TRUE(SendNumber(&rendezvous, keys[i], i).ok());
  for (int i = kKeys; i-- > 0;) ASSERT_EQ(Receive(&rendezvous, keys[i])->number(), i);
  const auto took = std::chrono::steady_clock::now() - began;
  RecordProperty("microseconds", absl::StrCat(took / std::chrono::microseconds(1)));
}

}  // namespace
}  // namespace tryst
