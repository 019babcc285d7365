// Keys of one hash, which FixKeyHashes() makes possible. A process of its own: it is for good.
#include <gtest/gtest.h>

#include <vector>

#include "rendezvous/colliding_keys.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/testing.h"
#include "rendezvous/virtual_alarms.h"

namespace tryst {
namespace {

TEST(FixedKeyHash, KeysOfOneHashAreNotOneKey) {
  FixKeyHashes();
  const std::vector<TensorKey> keys = CollidingKeys(1000);
  for (const TensorKey& key : keys) {
    ASSERT_EQ(key.hash(), keys[0].hash()) << "CollidingKeys() does not know the hash any more";
  }
  ASSERT_NE(keys[0], keys[1]);
  VirtualAlarms alarms;
  LocalRendezvous rendezvous(LocalRendezvous::Options(), &alarms);
  const auto got = Receive(&rendezvous, keys[0]);
  ASSERT_TRUE(SendNumber(&rendezvous, keys[1], 2).ok());
  EXPECT_EQ(got->calls, 0);
  ASSERT_TRUE(SendNumber(&rendezvous, keys[0], 1).ok());
  EXPECT_EQ(got->number(), 1);
  EXPECT_EQ(Receive(&rendezvous, keys[1])->number(), 2);
}

TEST(FixedKeyHash, IsTheSameEverywhere) {
  FixKeyHashes();
  // Simulations replay by it: a change of this number is a change of their order.
  EXPECT_EQ(TensorKey::Parse("/job:mnist/replica:1/task:2/device:CPU:0;0000000000001ed2;"
                             "/job:mnist/replica:1/task:2/device:GPU:0;edge_1;7:3")
                ->hash(),
            0x4590fc46fd380e66);
}

}  // namespace
}  // namespace tryst
