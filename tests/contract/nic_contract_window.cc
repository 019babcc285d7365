// Memory windows: keys are granted and revoked in the order of the works.
#include <cstring>

#include "tests/contract/nic_contract.h"

namespace tryst {

bool NicContractTest::OpenWithWindow(uint32_t region_access) {
  if (!pair_->second()->limits().memory_windows) {
    [] { GTEST_SKIP() << "no memory windows"; }();
    return false;
  }
  OpenBoth();
  auto region = b_.nic->RegisterRegion(b_.memory.data(), b_.memory.size(), region_access);
  auto window = b_.nic->CreateWindow();
  EXPECT_TRUE(region.ok() && window.ok()) << region.status() << window.status();
  if (!region.ok() || !window.ok()) return false;
  bindable_ = *std::move(region);
  window_ = *std::move(window);
  return true;
}

void NicContractTest::Bind(uint64_t offset, uint64_t bytes, uint32_t access,
                           CompletionStatus status) {
  const Entry length = {0, bytes, 0};
  SendWork work;
  work.id = 50;
  work.op = SendOp::kBindWindow;
  work.window = window_.get();
  work.window_region = bindable_.get();
  work.remote_address = bindable_->address() + offset;
  work.entries = absl::MakeConstSpan(&length, 1);
  work.window_access = access;
  ExpectOfB(work, status);
}

void NicContractTest::Invalidate(CompletionStatus status) {
  SendWork work;
  work.id = 51;
  work.op = SendOp::kInvalidateWindow;
  work.window = window_.get();
  ExpectOfB(work, status);
}

SendWork NicContractTest::WriteThrough(uint64_t id, uint64_t to, uint64_t bytes) {
  SendWork work = Write(id, 0, to, bytes);
  work.remote_key = window_->remote_key();
  return work;
}

void NicContractTest::ExpectOfB(const SendWork& work, CompletionStatus status) {
  const size_t before = b_.done.size();
  ASSERT_TRUE(Post(&b_, work).ok());
  ASSERT_TRUE(UntilDone(b_, before + 1));
  EXPECT_STREQ(CompletionStatusName(b_.done[before].status), CompletionStatusName(status));
  if (status == CompletionStatus::kOk) {
    EXPECT_EQ(b_.done[before].op, CompletionOp::kWindow);
  }
}

namespace {

TEST_P(NicContractTest, BoundWindowOpensItsPartOnly) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(1000, 100, kRemoteWrite, CompletionStatus::kOk);
  ExpectStatus(WriteThrough(1, 1000, 100), CompletionStatus::kOk);
  EXPECT_EQ(memcmp(&b_.memory[1000], &a_.memory[0], 100), 0);
  ExpectStatus(WriteThrough(2, 1001, 100), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(b_.memory[1100], 0);
}

TEST_P(NicContractTest, WindowForWritingIsNotForReading) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  SendWork work = WriteThrough(1, 0, 100);
  work.op = SendOp::kRead;
  ExpectStatus(work, CompletionStatus::kRemoteAccess);
}

TEST_P(NicContractTest, InvalidatedKeyOpensNothing) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  const SendWork late = WriteThrough(1, 0, 100);
  Invalidate(CompletionStatus::kOk);
  ExpectStatus(late, CompletionStatus::kRemoteAccess);
  EXPECT_EQ(b_.memory[0], 0);
}

TEST_P(NicContractTest, EachBindGivesANewKey) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  const uint32_t first = window_->remote_key();
  Invalidate(CompletionStatus::kOk);
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  EXPECT_NE(window_->remote_key(), first);
  ExpectStatus(WriteThrough(1, 0, 100), CompletionStatus::kOk);
  SendWork old = WriteThrough(2, 0, 100);
  old.remote_key = first;
  ExpectStatus(old, CompletionStatus::kRemoteAccess);
}

TEST_P(NicContractTest, WindowBelongsToTheQueuePairThatBoundIt) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  NicEnd bound_a = std::move(a_);
  NicEnd bound_b = std::move(b_);
  OpenBoth();
  SendWork work = WriteThrough(1, 0, 100);
  work.remote_address = bindable_->address();
  ExpectStatus(work, CompletionStatus::kRemoteAccess);
  EXPECT_EQ(bound_b.memory[0], 0);
  bound_a.queue_pair.reset();
  bound_b.queue_pair.reset();
}

TEST_P(NicContractTest, RegionThatDoesNotAllowItIsNotBound) {
  if (!OpenWithWindow(kLocalWrite | kRemoteWrite)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kWindowBind);
  EXPECT_NE(b_.queue_pair->state(), QueuePairState::kReady);
}

TEST_P(NicContractTest, WindowCannotExceedItsRegion) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(kMemoryBytes - 99, 100, kRemoteWrite, CompletionStatus::kWindowBind);
}

TEST_P(NicContractTest, WindowCannotBeInvalidatedTwice) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  Invalidate(CompletionStatus::kOk);
  SendWork again;
  again.op = SendOp::kInvalidateWindow;
  again.window = window_.get();
  ASSERT_TRUE(Post(&b_, again).ok());
  ASSERT_TRUE(UntilDone(b_, 3));
  // Hardware reports either.
  EXPECT_TRUE(b_.done[2].status == CompletionStatus::kLocalOperation ||
              b_.done[2].status == CompletionStatus::kWindowBind)
      << CompletionStatusName(b_.done[2].status);
}

TEST_P(NicContractTest, BoundWindowMustBeInvalidatedBeforeItIsBoundAgain) {
  if (!OpenWithWindow(kLocalWrite | kBindWindow)) return;
  Bind(0, 100, kRemoteWrite, CompletionStatus::kOk);
  Bind(0, 100, kRemoteWrite, CompletionStatus::kWindowBind);
}

}  // namespace
}  // namespace tryst
