// Queue pairs and their completion queue, through verbs/nic.h.
#include "verbs/ibv/ibv_queue_pair.h"

#include <cerrno>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/doubles/ibv/fake_ibv.h"
#include "tests/doubles/ibv/ibv_nic_fixture.h"

namespace tryst {
namespace {

using ::testing::HasSubstr;

class IbvQueuePairTest : public IbvNicTest {
 protected:
  ~IbvQueuePairTest() override {
    pair_.reset();
    queue_.reset();
    region_.reset();
  }

  // Makes a completion queue, and a queue pair with `depth` sends and receives.
  void Make(uint32_t depth) {
    if (nic_ == nullptr) Open();
    queue_ = *nic_->CreateCompletionQueue(4 * depth);
    region_ = *nic_->RegisterRegion(memory_, sizeof(memory_), kRemoteWrite);
    pair_ = MakePair(depth);
  }
  std::unique_ptr<QueuePair> MakePair(uint32_t depth) {
    QueuePairOptions options;
    options.completions = queue_.get();
    options.send_depth = depth;
    options.receive_depth = depth;
    options.max_entries = 2;
    options.max_inline_bytes = 64;
    absl::StatusOr<std::unique_ptr<QueuePair>> pair = nic_->CreateQueuePair(options);
    EXPECT_TRUE(pair.ok()) << pair.status();
    return pair.ok() ? *std::move(pair) : nullptr;
  }
  void MakeConnected(uint32_t depth) {
    Make(depth);
    const absl::Status status = pair_->Connect(pair_->LocalAddress());
    ASSERT_TRUE(status.ok()) << status;
  }
  FakeIbv::QueuePair* hardware() { return fake_.queue_pairs().back(); }

  SendWork Write(uint64_t id, bool signaled = true) {
    SendWork work;
    work.id = id;
    work.signaled = signaled;
    entry_ = {region_->address(), 8, region_->local_key()};
    work.entries = absl::MakeConstSpan(&entry_, 1);
    work.remote_address = 0x1000;
    work.remote_key = 0x77;
    return work;
  }
  absl::Status Post(std::vector<SendWork> works) { return pair_->PostSend(works); }
  absl::Status Receive(uint64_t id) {
    ReceiveWork work;
    work.id = id;
    return pair_->PostReceive(absl::MakeConstSpan(&work, 1));
  }
  std::vector<Completion> Poll() {
    Completion out[64];
    const absl::StatusOr<size_t> count = queue_->Poll(absl::MakeSpan(out));
    EXPECT_TRUE(count.ok()) << count.status();
    return std::vector<Completion>(out, out + (count.ok() ? *count : 0));
  }

  alignas(8) char memory_[256] = {};
  Entry entry_;
  std::unique_ptr<CompletionQueue> queue_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<QueuePair> pair_;
};

TEST_F(IbvQueuePairTest, ConnectGoesThroughTheStatesWithTheLesserMtu) {
  device_.ports[0].attributes.active_mtu = IBV_MTU_2048;
  Make(4);
  EXPECT_EQ(pair_->state(), QueuePairState::kReset);
  EXPECT_EQ(hardware()->modified[0].qp_state, IBV_QPS_INIT);
  FakeIbv other;
  other.AddDevice("peer0");
  IbvNicOptions options;
  options.calls = other.Calls();
  options.choice.settings.mtu_bytes = 1024;
  const std::unique_ptr<Nic> peer = *OpenIbvNic(options);
  const std::unique_ptr<CompletionQueue> peer_queue = *peer->CreateCompletionQueue(256);
  QueuePairOptions pair_options;
  pair_options.completions = peer_queue.get();
  const std::unique_ptr<QueuePair> peer_pair = *peer->CreateQueuePair(pair_options);
  ASSERT_TRUE(pair_->Connect(peer_pair->LocalAddress()).ok());
  EXPECT_EQ(pair_->state(), QueuePairState::kReady);
  ASSERT_EQ(hardware()->modified.size(), 3u);
  const ibv_qp_attr& receive = hardware()->modified[1];
  EXPECT_EQ(receive.qp_state, IBV_QPS_RTR);
  EXPECT_EQ(receive.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(receive.dest_qp_num, peer_pair->number());
  EXPECT_EQ(receive.ah_attr.is_global, 1);
  EXPECT_EQ(receive.ah_attr.grh.sgid_index, 1);
  EXPECT_EQ(receive.max_dest_rd_atomic, 16);
  const ibv_qp_attr& send = hardware()->modified[2];
  EXPECT_EQ(send.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(send.sq_psn, 0x123456u);
  EXPECT_EQ(send.retry_cnt, 6);
  EXPECT_EQ(send.max_rd_atomic, 8);
}

TEST_F(IbvQueuePairTest, WhatTheUserDecidedWins) {
  RdmaSettings& settings = options_.choice.settings;
  settings.ack_timeout = 18;
  settings.retry_count = 7;
  settings.service_level = 3;
  settings.traffic_class = 106;
  settings.pkey_index = 2;
  MakeConnected(4);
  EXPECT_EQ(hardware()->modified[0].pkey_index, 2);
  EXPECT_EQ(hardware()->modified[1].ah_attr.sl, 3);
  EXPECT_EQ(hardware()->modified[1].ah_attr.grh.traffic_class, 106);
  EXPECT_EQ(hardware()->modified[2].timeout, 18);
  EXPECT_EQ(hardware()->modified[2].retry_cnt, 6);  // Never 7.
}

TEST_F(IbvQueuePairTest, ExtensionsAreWhatBothOffer) {
  device_.extensions = {0x15b3, 0x7, 0};
  MakeConnected(4);
  EXPECT_EQ(hardware()->agreed.vendor_id, 0x15b3u);
  EXPECT_EQ(hardware()->agreed.options, 0x7u);
}

TEST_F(IbvQueuePairTest, OptionsBeyondTheLimitsAreRefused) {
  Make(4);
  const auto refused = [this](void (*change)(QueuePairOptions*)) {
    QueuePairOptions options;
    options.completions = queue_.get();
    options.send_depth = options.receive_depth = 1;
    change(&options);
    return absl::IsInvalidArgument(nic_->CreateQueuePair(options).status());
  };
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->completions = nullptr; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->send_depth = 0; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->send_depth = 1024; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->receive_depth = 1024; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->max_entries = 9; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->max_inline_bytes = 513; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->port = 2; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->ack_timeout = 0; }));
  EXPECT_TRUE(refused([](QueuePairOptions* o) { o->retry_count = 7; }));
}

TEST_F(IbvQueuePairTest, ACompletionQueueCannotBeOverrun) {
  Make(4);  // The queue is 16 deep, and the pair takes 8.
  const std::unique_ptr<QueuePair> second = MakePair(4);
  QueuePairOptions options;
  options.completions = queue_.get();
  options.send_depth = options.receive_depth = 1;
  EXPECT_EQ(nic_->CreateQueuePair(options).status().code(), absl::StatusCode::kResourceExhausted);
  pair_.reset();
  pair_ = MakePair(4);  // The room was given back.
  EXPECT_NE(pair_, nullptr);
}

TEST_F(IbvQueuePairTest, AQueuePairThatTheNicRefusesLeavesNothing) {
  Make(4);
  QueuePairOptions options;
  options.completions = queue_.get();
  options.send_depth = options.receive_depth = 4;
  fake_.Fail("ibv_create_qp", ENOMEM);
  EXPECT_EQ(nic_->CreateQueuePair(options).status().code(), absl::StatusCode::kResourceExhausted);
  fake_.Fail("ibv_create_qp", 0);
  fake_.Fail("ibv_modify_qp", EINVAL);
  EXPECT_EQ(nic_->CreateQueuePair(options).status().code(), absl::StatusCode::kInvalidArgument);
  fake_.Fail("ibv_modify_qp", 0);
  EXPECT_TRUE(nic_->CreateQueuePair(options).ok());
}

TEST_F(IbvQueuePairTest, ABadAddressChangesNothing) {
  Make(4);
  EXPECT_TRUE(absl::IsInvalidArgument(pair_->Connect("rubbish")));
  EXPECT_EQ(pair_->state(), QueuePairState::kReset);
  EXPECT_TRUE(absl::IsFailedPrecondition(Post({Write(1)})));
}

TEST_F(IbvQueuePairTest, AConnectThatFailsSaysBetweenWhom) {
  Make(4);
  fake_.Fail("ibv_modify_qp", ENETUNREACH);
  const absl::Status status = pair_->Connect(pair_->LocalAddress());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("with queue pair 18 at 10.0.0.1"));
  EXPECT_EQ(pair_->state(), QueuePairState::kBroken);
}

TEST_F(IbvQueuePairTest, ABatchIsOneDoorbellAndKeepsItsOrder) {
  MakeConnected(8);
  SendWork immediate = Write(11, false);
  immediate.op = SendOp::kWriteWithImmediate;
  immediate.immediate = 0x01020304;
  SendWork small = Write(12);
  small.inline_data = true;
  ASSERT_TRUE(Post({Write(10), immediate, small}).ok());
  const std::vector<FakeIbv::PostedSend>& posted = hardware()->history;
  ASSERT_EQ(posted.size(), 3u);
  EXPECT_EQ(hardware()->doorbells, 1);
  EXPECT_EQ(posted[0].work.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(posted[0].work.send_flags, unsigned{IBV_SEND_SIGNALED});
  EXPECT_EQ(posted[0].work.wr.rdma.remote_addr, 0x1000u);
  EXPECT_EQ(posted[0].work.wr.rdma.rkey, 0x77u);
  ASSERT_EQ(posted[0].entries.size(), 1u);
  EXPECT_EQ(posted[0].entries[0].lkey, region_->local_key());
  EXPECT_EQ(posted[0].entries[0].length, 8u);
  EXPECT_EQ(posted[1].work.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(posted[1].work.send_flags, 0u);
  EXPECT_EQ(std::memcmp(&posted[1].work.imm_data, "\1\2\3\4", 4), 0);  // In network order.
  EXPECT_EQ(posted[2].work.send_flags, unsigned{IBV_SEND_SIGNALED} | IBV_SEND_INLINE);
}

TEST_F(IbvQueuePairTest, WorksOverTheLimitsAreRefusedAndNoneIsPosted) {
  MakeConnected(4);
  SendWork many = Write(1);
  const std::vector<Entry> three(3, entry_);
  many.entries = three;
  SendWork large = Write(2);
  const std::vector<Entry> halves(2, Entry{region_->address(), (1u << 29) + 1, 1});
  large.entries = halves;
  SendWork huge = Write(3);
  const Entry wraps[2] = {{0, ~uint64_t{0}, 1}, {0, 2, 1}};
  huge.entries = wraps;
  SendWork fat_inline = Write(4);
  const Entry fat = {region_->address(), 65, 0};
  fat_inline.entries = absl::MakeConstSpan(&fat, 1);
  fat_inline.inline_data = true;
  SendWork inline_read = Write(5);
  inline_read.op = SendOp::kRead;
  inline_read.inline_data = true;
  for (const SendWork& wrong : {many, large, huge, fat_inline, inline_read}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Post({Write(9), wrong}))) << wrong.id;
  }
  EXPECT_TRUE(hardware()->history.empty());
  EXPECT_EQ(pair_->send_room(), 4u);
  EXPECT_EQ(pair_->state(), QueuePairState::kReady);
}

TEST_F(IbvQueuePairTest, RoomOfSilentWorksReturnsWithTheNextSignaledOne) {
  MakeConnected(4);
  ASSERT_TRUE(Post({Write(1, false), Write(2, false), Write(3), Write(4, false)}).ok());
  EXPECT_EQ(pair_->send_room(), 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(Post({Write(5)})));
  fake_.CompleteSends(hardware(), 2);
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(pair_->send_room(), 0u);
  fake_.CompleteSends(hardware(), 1);
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 3u);
  EXPECT_EQ(done[0].status, CompletionStatus::kOk);
  EXPECT_EQ(done[0].op, CompletionOp::kSend);
  EXPECT_EQ(done[0].queue_pair, pair_->number());
  EXPECT_EQ(pair_->send_room(), 3u);
}

TEST_F(IbvQueuePairTest, TheSequenceMayWrapTheRingManyTimes) {
  MakeConnected(3);
  for (uint64_t id = 0; id < 1000; ++id) {
    ASSERT_TRUE(Post({Write(2 * id, false), Write(2 * id + 1)}).ok());
    fake_.CompleteSends(hardware(), 2);
    const std::vector<Completion> done = Poll();
    ASSERT_EQ(done.size(), 1u);
    ASSERT_EQ(done[0].id, 2 * id + 1);
    ASSERT_EQ(pair_->send_room(), 3u);
  }
}

TEST_F(IbvQueuePairTest, ReceivesTellLengthAndImmediateInHostOrder) {
  MakeConnected(4);
  ASSERT_TRUE(Receive(5).ok());
  ASSERT_TRUE(Receive(6).ok());
  EXPECT_EQ(pair_->receive_room(), 2u);
  fake_.CompleteReceive(hardware(), IBV_WC_RECV_RDMA_WITH_IMM, 4096, 0xabcd1234);
  fake_.CompleteReceive(hardware(), IBV_WC_RECV, 7, 1);
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].id, 5u);
  EXPECT_EQ(done[0].op, CompletionOp::kReceiveWriteImmediate);
  EXPECT_EQ(done[0].immediate, 0xabcd1234u);
  EXPECT_EQ(done[0].bytes, 4096u);
  EXPECT_EQ(done[1].op, CompletionOp::kReceive);
  EXPECT_EQ(pair_->receive_room(), 4u);
}

TEST_F(IbvQueuePairTest, BreakFlushesEverythingAndThenItIsDrained) {
  MakeConnected(4);
  ASSERT_TRUE(Receive(5).ok());
  ASSERT_TRUE(Post({Write(1), Write(2, false)}).ok());
  pair_->Break();
  EXPECT_EQ(pair_->state(), QueuePairState::kBroken);
  EXPECT_TRUE(absl::IsFailedPrecondition(Post({Write(3)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(Receive(6)));
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 3u);  // Without the markers.
  for (const Completion& each : done) EXPECT_EQ(each.status, CompletionStatus::kFlushed);
  EXPECT_EQ(pair_->state(), QueuePairState::kDrained);
  pair_->Break();
  EXPECT_EQ(pair_->state(), QueuePairState::kDrained);
  EXPECT_EQ(hardware()->modified.back().qp_state, IBV_QPS_ERR);
}

TEST_F(IbvQueuePairTest, SilentWorksThatHadSucceededDoNotHoldTheDrainUp) {
  MakeConnected(4);
  ASSERT_TRUE(Post({Write(1, false), Write(2, false)}).ok());
  fake_.CompleteSends(hardware(), 2);  // They are unsignaled, so nothing reports them.
  pair_->Break();
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(pair_->state(), QueuePairState::kDrained);
}

TEST_F(IbvQueuePairTest, BreakBeforeConnectGivesTheReceivesBack) {
  Make(4);
  ASSERT_TRUE(Receive(5).ok());
  pair_->Break();
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 5u);
  EXPECT_EQ(pair_->state(), QueuePairState::kDrained);
}

TEST_F(IbvQueuePairTest, AFailedWorkBreaksThePairAndTheFirstCauseIsKept) {
  MakeConnected(4);
  ASSERT_TRUE(Post({Write(1), Write(2)}).ok());
  fake_.CompleteSends(hardware(), 1, IBV_WC_RETRY_EXC_ERR);
  const std::vector<Completion> done = Poll();
  ASSERT_GE(done.size(), 1u);
  EXPECT_EQ(done[0].status, CompletionStatus::kRetryExceeded);
  EXPECT_EQ(done[0].vendor_error, 0x81u);
  EXPECT_EQ(pair_->state(), QueuePairState::kBroken);
  const std::vector<Completion> rest = Poll();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].id, 2u);
  EXPECT_EQ(rest[0].status, CompletionStatus::kFlushed);
  EXPECT_EQ(pair_->state(), QueuePairState::kDrained);
  EXPECT_EQ(pair_->send_room(), 4u);
  EXPECT_THAT(std::string(Post({Write(3)}).message()), HasSubstr("retries exceeded"));
}

TEST_F(IbvQueuePairTest, ABreakThatTheNicRefusesNeverClaimsToHaveDrained) {
  MakeConnected(4);
  fake_.Fail("ibv_modify_qp", EIO);
  pair_->Break();
  Poll();
  EXPECT_EQ(pair_->state(), QueuePairState::kBroken);
}

TEST_F(IbvQueuePairTest, AMarkerThatTheNicRefusesNeverClaimsToHaveDrained) {
  for (const char* call : {"ibv_post_send", "ibv_post_recv"}) {
    MakeConnected(4);
    fake_.Fail(call, EINVAL);
    pair_->Break();
    Poll();
    EXPECT_EQ(pair_->state(), QueuePairState::kBroken) << call;
    fake_.Fail(call, 0);
    pair_.reset();
    queue_.reset();
  }
}

TEST_F(IbvQueuePairTest, APostRefusedWholePostsNone) {
  MakeConnected(4);
  fake_.Fail("ibv_post_send", ENOMEM);
  EXPECT_TRUE(absl::IsResourceExhausted(Post({Write(1), Write(2)})));
  EXPECT_EQ(pair_->state(), QueuePairState::kReady);
  EXPECT_EQ(pair_->send_room(), 4u);
  fake_.Fail("ibv_post_recv", ENOMEM);
  EXPECT_TRUE(absl::IsResourceExhausted(Receive(1)));
  EXPECT_EQ(pair_->receive_room(), 4u);
}

TEST_F(IbvQueuePairTest, APostRefusedHalfwayBreaksAndAccountsForTheOthers) {
  MakeConnected(4);
  fake_.RefuseSendsAfter(2);
  const absl::Status status = Post({Write(1), Write(2), Write(3)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the NIC took 2 of several transfers"));
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].id, 1u);
  EXPECT_EQ(done[1].id, 2u);
  EXPECT_EQ(pair_->state(), QueuePairState::kDrained);
}

TEST_F(IbvQueuePairTest, ADestroyedPairLeavesNoCompletionAndOthersLoseNone) {
  Make(4);
  const std::unique_ptr<QueuePair> other = MakePair(4);
  ASSERT_TRUE(pair_->Connect(other->LocalAddress()).ok());
  ASSERT_TRUE(other->Connect(pair_->LocalAddress()).ok());
  ASSERT_TRUE(Post({Write(1), Write(2)}).ok());
  const SendWork theirs = Write(7);
  ASSERT_TRUE(other->PostSend(absl::MakeConstSpan(&theirs, 1)).ok());
  fake_.CompleteSends(fake_.queue_pairs()[0], 1);
  fake_.CompleteSends(fake_.queue_pairs()[1], 1);
  pair_.reset();  // Its first completion is in the queue, the second never came.
  const std::vector<Completion> done = Poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, 7u);
}

TEST_F(IbvQueuePairTest, WhatWasKeptOfADestroyedPairIsForgotten) {
  Make(4);
  std::unique_ptr<QueuePair> other = MakePair(4);
  ASSERT_TRUE(pair_->Connect(other->LocalAddress()).ok());
  ASSERT_TRUE(Post({Write(1)}).ok());
  fake_.CompleteSends(fake_.queue_pairs()[0], 1);
  other.reset();  // Takes the completion out of the hardware's queue.
  pair_.reset();
  EXPECT_TRUE(Poll().empty());
}

TEST_F(IbvQueuePairTest, ACompletionOfNothingIsDropped) {
  MakeConnected(4);
  ASSERT_TRUE(Post({Write(1)}).ok());
  FakeIbv::QueuePair* const pair = hardware();
  fake_.CompleteSends(pair, 1);
  pair->queue->done.push_back(pair->queue->done.front());  // One completion comes twice.
  ibv_wc rogue = pair->queue->done.front();
  rogue.wr_id |= uint64_t{0x1234} << 48;  // A slot that does not exist.
  pair->queue->done.push_back(rogue);
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(pair_->send_room(), 4u);
}

TEST_F(IbvQueuePairTest, AQueueThatCannotBePolledIsLost) {
  MakeConnected(4);
  fake_.Fail("ibv_poll_cq", EIO);
  Completion out[4];
  EXPECT_EQ(queue_->Poll(absl::MakeSpan(out)).status().code(), absl::StatusCode::kUnavailable);
  fake_.Fail("ibv_poll_cq", 0);
}

TEST_F(IbvQueuePairTest, ArmTakesTheOldEventsAndAcknowledgesThemInTheEnd) {
  MakeConnected(4);
  EXPECT_FALSE(Readable(queue_->event_fd()));
  fake_.RaiseCompletionEvent();
  EXPECT_TRUE(Readable(queue_->event_fd()));
  ASSERT_TRUE(queue_->Arm().ok());
  EXPECT_FALSE(Readable(queue_->event_fd()));
  EXPECT_TRUE(hardware()->queue->armed);
  // The destructor acknowledges it; the fixture checks that.
  EXPECT_EQ(fake_.unacknowledged_events(), 1);
}

TEST_F(IbvQueuePairTest, ArmMayFailInBothItsCalls) {
  MakeConnected(4);
  fake_.Fail("ibv_get_cq_event", EIO);
  EXPECT_THAT(std::string(queue_->Arm().message()), HasSubstr("ibv_get_cq_event"));
  fake_.Fail("ibv_get_cq_event", 0);
  fake_.Fail("ibv_req_notify_cq", EIO);
  EXPECT_THAT(std::string(queue_->Arm().message()), HasSubstr("ibv_req_notify_cq"));
}

TEST_F(IbvQueuePairTest, AFatalEventNamesThePair) {
  MakeConnected(4);
  fake_.RaiseEvent(IBV_EVENT_QP_FATAL, 0, hardware());
  const absl::optional<NicEvent> event = nic_->NextEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, NicEvent::Kind::kQueuePairFatal);
  EXPECT_EQ(event->id, pair_->number());
}

}  // namespace
}  // namespace tryst
