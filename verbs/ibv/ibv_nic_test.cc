#include "verbs/ibv/ibv_nic.h"

#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/ibv/fake_ibv.h"
#include "tests/doubles/ibv/ibv_nic_fixture.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

TEST_F(IbvNicTest, LimitsLeaveRoomForTheMarkers) {
  const NicLimits& limits = Open()->limits();
  EXPECT_EQ(limits.max_message_bytes, 1u << 30);
  EXPECT_EQ(limits.max_entries, 8u);
  EXPECT_EQ(limits.max_inline_bytes, 512u);
  EXPECT_EQ(limits.max_send_depth, 1023u);
  EXPECT_EQ(limits.max_completion_depth, 2048u);
  EXPECT_EQ(limits.max_reads_in_flight, 8u);
  EXPECT_TRUE(limits.dma_buf);
  EXPECT_TRUE(limits.relaxed_ordering);
}

TEST_F(IbvNicTest, AnOldLibraryHasLess) {
  options_.calls->reg_dmabuf_mr = nullptr;
  options_.calls->reg_mr_iova2 = nullptr;
  options_.calls->query_gid_table = nullptr;
  options_.calls->query_ece = nullptr;
  options_.choice.settings.gid_index = 1;
  Nic* const nic = Open();
  EXPECT_FALSE(nic->limits().dma_buf);
  EXPECT_FALSE(nic->limits().relaxed_ordering);
  EXPECT_EQ(nic->RegisterDmaBuf(3, 0, 4096, 0, kLocalOnly).status().code(),
            absl::StatusCode::kUnimplemented);
  char memory[64];
  const auto region = nic->RegisterRegion(memory, 64, kLocalWrite | kRelaxedOrdering);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(fake_.regions().back().access, unsigned{IBV_ACCESS_LOCAL_WRITE});
}

TEST_F(IbvNicTest, AKernelWithoutDmaBufForThisDevice) {
  fake_.Fail("ibv_reg_dmabuf_mr", EOPNOTSUPP);
  EXPECT_FALSE(Open()->limits().dma_buf);
}

TEST_F(IbvNicTest, EveryStepOfOpeningMayFailAndLeavesNothing) {
  for (const char* call : {"ibv_open_device", "ibv_alloc_pd", "ibv_query_device", "ibv_query_port",
                           "ibv_get_device_list"}) {
    fake_.Fail(call, EIO);
    const absl::Status status = OpenFailure();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << call;
    EXPECT_THAT(std::string(status.message()), HasSubstr(call));
    EXPECT_EQ(fake_.live(), 0) << call;
    fake_.Fail(call, 0);
  }
}

TEST_F(IbvNicTest, ThePortsTellTheirAddressAndWhy) {
  device_.attributes.phys_port_cnt = 2;
  device_.ports.push_back(device_.ports[0]);
  device_.ports[0].attributes.state = IBV_PORT_DOWN;
  const std::vector<NicPort> ports = Open()->Ports();
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].number, 2);  // The chosen port comes first.
  EXPECT_EQ(ports[0].state, PortState::kActive);
  EXPECT_EQ(ports[0].address, "10.0.0.1");
  EXPECT_EQ(ports[0].mtu_bytes, 4096u);
  EXPECT_EQ(ports[0].bits_per_second, 25781250000u);
  EXPECT_THAT(ports[0].description, HasSubstr("RoCE v2"));
  EXPECT_EQ(ports[1].state, PortState::kDown);
  EXPECT_THAT(ports[1].description, HasSubstr("port is down"));
  // Ports() asks the device each time.
  device_.ports[0].attributes.state = IBV_PORT_ACTIVE;
  EXPECT_EQ(nic_->Ports()[1].state, PortState::kActive);
}

TEST_F(IbvNicTest, RegionsHaveTheRightsAskedFor) {
  Nic* const nic = Open();
  char memory[4096];
  const auto region =
      nic->RegisterRegion(memory, sizeof(memory), kRemoteWrite | kRemoteRead | kRelaxedOrdering);
  ASSERT_TRUE(region.ok()) << region.status();
  const FakeIbv::Region& made = fake_.regions().back();
  EXPECT_TRUE(made.with_optional_rights);
  EXPECT_EQ(made.access, unsigned{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
  EXPECT_EQ((*region)->address(), reinterpret_cast<uintptr_t>(memory));
  EXPECT_EQ((*region)->bytes(), sizeof(memory));
  EXPECT_EQ((*region)->local_key(), made.verbs.lkey);
  EXPECT_EQ((*region)->remote_key(), made.verbs.rkey);
}

TEST_F(IbvNicTest, RangesThatAreNoneAreRefused) {
  Nic* const nic = Open();
  char memory[8];
  EXPECT_TRUE(absl::IsInvalidArgument(nic->RegisterRegion(nullptr, 8, kLocalOnly).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(nic->RegisterRegion(memory, 0, kLocalOnly).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(nic->RegisterRegion(memory, ~uint64_t{0} - 7, kLocalOnly).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(nic->RegisterDmaBuf(-1, 0, 8, 0, kLocalOnly).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(nic->RegisterDmaBuf(3, ~uint64_t{0}, 8, 0, kLocalOnly).status()));
}

TEST_F(IbvNicTest, ARegionThatDoesNotFitIsExhausted) {
  Nic* const nic = Open();
  char memory[8];
  fake_.Fail("ibv_reg_mr_iova2", ENOMEM);
  const absl::Status status = nic->RegisterRegion(memory, 8, kLocalOnly).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("registering 8 bytes"));
}

TEST_F(IbvNicTest, ADmaBufBeginsWhereTheCallerSays) {
  const auto region = Open()->RegisterDmaBuf(3, 4096, 8192, 0x7000, kRemoteWrite);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->address(), 0x7000u);
  EXPECT_EQ((*region)->bytes(), 8192u);
}

TEST_F(IbvNicTest, EventsBecomeOursAndTheRestPassesBy) {
  Nic* const nic = Open();
  EXPECT_FALSE(nic->NextEvent().has_value());
  fake_.RaiseEvent(IBV_EVENT_COMM_EST, 0);
  fake_.RaiseEvent(IBV_EVENT_PORT_ERR, 1);
  fake_.RaiseEvent(IBV_EVENT_PORT_ACTIVE, 2);
  fake_.RaiseEvent(IBV_EVENT_GID_CHANGE, 1);
  fake_.RaiseEvent(IBV_EVENT_DEVICE_FATAL, 0);
  fake_.RaiseEvent(IBV_EVENT_CQ_ERR, 0);
  EXPECT_TRUE(Readable(nic->event_fd()));
  absl::optional<NicEvent> event = nic->NextEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, NicEvent::Kind::kPortDown);
  EXPECT_EQ(event->port, 1);
  event = nic->NextEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, NicEvent::Kind::kPortUp);
  EXPECT_EQ(event->port, 2);
  EXPECT_EQ(nic->NextEvent()->kind, NicEvent::Kind::kAddressChanged);
  EXPECT_EQ(nic->NextEvent()->kind, NicEvent::Kind::kDeviceFatal);
  EXPECT_EQ(nic->NextEvent()->kind, NicEvent::Kind::kCompletionQueueFatal);
  EXPECT_FALSE(nic->NextEvent().has_value());
  EXPECT_FALSE(Readable(nic->event_fd()));
}

TEST_F(IbvNicTest, ADeadEventDescriptorIsOneFatalEvent) {
  Nic* const nic = Open();
  fake_.Fail("ibv_get_async_event", EIO);
  ASSERT_TRUE(nic->NextEvent().has_value());
  EXPECT_FALSE(nic->NextEvent().has_value());
}

}  // namespace
}  // namespace tryst
