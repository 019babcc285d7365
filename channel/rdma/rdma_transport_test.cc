#include "channel/rdma/rdma_transport.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/sim_nic/sim_nic.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {
namespace {

// What waits for its next attempt is tried at once.
TEST(RdmaTransportTest, TellsThatTheNetworkIsBetter) {
  SimWorld world(1);
  Poller poller(&world.clock());
  poller.Turn();
  TransportContext context;
  context.poller = &poller;
  context.self = "/job:c/replica:0/task:0";
  context.incarnation = 1;
  int changes = 0;
  context.network_changed = [&] { ++changes; };
  const auto nic = std::make_shared<SharedNic>(NicPath{"rdma/sim", world.OpenNic(0)}, 1 << 20);
  RdmaTransport transport(context, nic, RdmaOptions());
  ASSERT_TRUE(transport.Open().ok());
  const auto heard = [&] {
    world.RunFor(1'000'000);
    transport.Maintain();
    while (poller.Turn()) {
    }
    return std::exchange(changes, 0);
  };
  world.SetPort(0, 1, false);
  EXPECT_EQ(heard(), 0);
  world.SetPort(0, 1, true);
  EXPECT_EQ(heard(), 1);
  world.ChangeAddress(0);
  EXPECT_EQ(heard(), 1);
  transport.Close(absl::CancelledError("over"));
  for (int i = 0; i < 100 && !transport.Drained(); ++i) (void)heard();
  EXPECT_TRUE(transport.Drained());
  world.ChangeAddress(0);
  nic->PollEvents();
  EXPECT_FALSE(poller.Turn()) << "it may be gone when this would tell it";
}

TEST(RdmaTransportTest, CountsAreThereFromTheStart) {
  SimWorld world(1);
  Poller poller(&world.clock());
  poller.Turn();
  TransportContext context;
  context.poller = &poller;
  const auto nic = std::make_shared<SharedNic>(NicPath{"rdma/sim", world.OpenNic(0)}, 1 << 20);
  RdmaTransport transport(context, nic, RdmaOptions());
  ASSERT_TRUE(transport.Open().ok());
  Counters counters;
  transport.AddCounters(&counters);
  std::vector<std::string> names;
  for (const auto& [name, counter] : counters.all()) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("pinned_bytes", "pinned_bytes_most", "rdma_breaks",
                                          "rdma_digests_wrong", "rdma_epochs", "rdma_fetched_bytes",
                                          "rdma_fetches", "rdma_in_runs", "rdma_replays",
                                          "rdma_runs", "rdma_source_registrations",
                                          "rdma_sources_found", "rdma_sources_kept_bytes"));
  transport.Close(absl::CancelledError("over"));
  while (poller.Turn()) {
  }
}

// A program may hold a tensor for longer than it has the NIC.
TEST(SharedNicTest, ALandingThatIsGivenBackLaterTellsNobodyOfRoom) {
  SimWorld world(1);
  auto nic = std::make_unique<SharedNic>(NicPath{"rdma/sim", world.OpenNic(0)}, 1 << 20);
  LandingPool* const landings = nic->landings();
  StorageRef held = landings->Take(1 << 20, LandingPool::For::kReady, 0);
  ASSERT_TRUE(held);
  EXPECT_FALSE(landings->Take(1, LandingPool::For::kReady, 0)) << "who waits is to be told";
  // Whoever is called where it was has another life there.
  const auto bytes = reinterpret_cast<unsigned char*>(nic.get());
  SharedNic* const was = nic.release();
  was->~SharedNic();
  memset(bytes, 0xa5, sizeof(SharedNic));
  held = StorageRef();
  operator delete(bytes);
}

}  // namespace
}  // namespace tryst
