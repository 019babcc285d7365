#include "verbs/ibv/ibv_status.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace tryst {
namespace {

// Each stub fails like the call that it stands for.
int ReturnsErrno(int error) { return error; }
int ReturnsMinusOne(int error) {
  errno = error;
  return -1;
}
ibv_cq* ReturnsNull(int error) {
  errno = error;
  return nullptr;
}

TEST(IbvStatusTest, ReturnedErrnoIsPositiveAndZeroIsSuccess) {
  EXPECT_TRUE(FromReturned(0, "ibv_modify_qp").ok());
  // This is why the functions exist: a check for "< 0" would take this for success.
  const absl::Status status = FromReturned(ReturnsErrno(EINVAL), "ibv_modify_qp");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "ibv_modify_qp: Invalid argument (errno 22)");
}

TEST(IbvStatusTest, ReturnedErrnoToleratesDriversThatNegate) {
  EXPECT_EQ(FromReturned(-ENOMEM, "call").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(FromReturned(ReturnsMinusOne(EACCES), "call").code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(IbvStatusTest, ReturnedValueIgnoresStaleErrno) {
  errno = EACCES;
  EXPECT_EQ(FromReturned(ENOMEM, "call").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(FromReturned(0, "call").ok());
}

TEST(IbvStatusTest, NullPointerTakesErrno) {
  const absl::StatusOr<ibv_cq*> none = FromPointer(ReturnsNull(ENOMEM), "ibv_create_cq");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  ibv_cq queue = {};
  errno = ENOMEM;  // From an earlier, unrelated call.
  const absl::StatusOr<ibv_cq*> some = FromPointer(&queue, "ibv_create_cq");
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(*some, &queue);
}

TEST(IbvStatusTest, NullPointerWithoutErrnoIsStillAFailure) {
  EXPECT_EQ(FromPointer(ReturnsNull(0), "ibv_create_cq").status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(IbvStatusTest, PolledCountIsNegativeOnFailure) {
  EXPECT_EQ(*FromPolled(0), 0u);
  EXPECT_EQ(*FromPolled(7), 7u);
  EXPECT_EQ(FromPolled(-1).status().code(), absl::StatusCode::kUnavailable);
}

TEST(IbvStatusTest, EventCallReturnsMinusOneAndNoEventIsNoFailure) {
  EXPECT_TRUE(*FromEventCall(0, "ibv_get_cq_event"));
  EXPECT_FALSE(*FromEventCall(ReturnsMinusOne(EAGAIN), "ibv_get_cq_event"));
  EXPECT_FALSE(*FromEventCall(ReturnsMinusOne(EINTR), "ibv_get_cq_event"));
  EXPECT_EQ(FromEventCall(ReturnsMinusOne(EIO), "ibv_get_cq_event").status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(IbvStatusTest, EveryWorkStatusHasACompletionStatus) {
  bool reached[kCompletionStatusCount] = {};
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    const CompletionStatus ours = FromWorkStatus(static_cast<ibv_wc_status>(status));
    EXPECT_EQ(ours == CompletionStatus::kOk, status == IBV_WC_SUCCESS) << status;
    reached[static_cast<int>(ours)] = true;
  }
  for (int ours = 0; ours < kCompletionStatusCount; ++ours) {
    EXPECT_TRUE(reached[ours]) << CompletionStatusName(static_cast<CompletionStatus>(ours));
  }
}

TEST(IbvStatusTest, AStatusOfAYoungerLibraryIsAFailure) {
  EXPECT_EQ(FromWorkStatus(static_cast<ibv_wc_status>(9999)), CompletionStatus::kGeneral);
}

TEST(IbvStatusTest, WorkStatusSaysWhoseFaultItIs) {
  EXPECT_TRUE(StatusOfWork(IBV_WC_SUCCESS, 0, 17).ok());
  const absl::Status lost = StatusOfWork(IBV_WC_RETRY_EXC_ERR, 0x81, 17);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lost.message(), "queue pair 17: retries exceeded (status 12, vendor error 0x81)");
  EXPECT_EQ(StatusOfWork(IBV_WC_LOC_PROT_ERR, 0, 17).code(), absl::StatusCode::kInternal);
}

TEST(IbvStatusTest, ErrnoSaysWhatTheCallerShouldDo) {
  EXPECT_EQ(FromErrno(EOPNOTSUPP, "c").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FromErrno(EBUSY, "c").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FromErrno(ENODEV, "c").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FromErrno(ENETUNREACH, "c").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FromErrno(0, "c").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tryst
