#include "channel/ops/fetch_table.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace tryst {
namespace {

FetchState StateAt(size_t i) { return static_cast<FetchState>(i); }
FetchEvent EventAt(size_t i) { return static_cast<FetchEvent>(i); }
bool IsPeers(FetchEvent event) { return event <= FetchEvent::kGone; }

TEST(FetchTableTest, EveryStateCanBeEnded) {
  for (size_t i = 0; i < kFetchStateCount; ++i) {
    if (StateAt(i) == FetchState::kFree || StateAt(i) == FetchState::kEnding) continue;
    EXPECT_NE(FindFetchRow(StateAt(i), FetchEvent::kEnd), nullptr) << FetchStateName(StateAt(i));
  }
}

// A peer's events change only fetches that were requested from it and that it has not ended.
TEST(FetchTableTest, APeerChangesNothingThatIsNotItsTurn) {
  const std::set<FetchState> open = {FetchState::kAsked, FetchState::kParts,   FetchState::kParked,
                                     FetchState::kHere,  FetchState::kLeaving, FetchState::kLeft};
  for (size_t i = 0; i < kFetchStateCount; ++i) {
    for (size_t k = 0; k < kFetchEventCount; ++k) {
      if (!IsPeers(EventAt(k)) || open.count(StateAt(i)) != 0) continue;
      EXPECT_EQ(FindFetchRow(StateAt(i), EventAt(k)), nullptr)
          << FetchEventName(EventAt(k)) << " of a fetch that " << FetchStateName(StateAt(i));
    }
  }
  const absl::Status out = OutOfPlace(FetchState::kQueued, FetchEvent::kTensor);
  EXPECT_EQ(out.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(out.message().find("TENSOR"), absl::string_view::npos) << out;
}

// After our CANCEL only the answer to it ends the ask, and after that answer only its last parts.
TEST(FetchTableTest, OnlyItsAnswerEndsWhatWasCancelled) {
  for (size_t k = 0; k < kFetchEventCount; ++k) {
    const FetchRow* row = FindFetchRow(FetchState::kLeaving, EventAt(k));
    if (row == nullptr || !IsPeers(EventAt(k))) continue;
    const bool gone = EventAt(k) == FetchEvent::kGone;
    EXPECT_EQ(row->next, gone ? FetchState::kLeft : FetchState::kLeaving)
        << FetchEventName(EventAt(k));
    EXPECT_EQ(row->action == FetchAction::kLastWord, gone) << FetchEventName(EventAt(k));
    EXPECT_EQ(FindFetchRow(FetchState::kLeft, EventAt(k)) != nullptr,
              EventAt(k) == FetchEvent::kPart)
        << FetchEventName(EventAt(k));
  }
}

// What was asked for belongs to whichever fetch is in front, so nothing changes for the peer.
TEST(FetchTableTest, HandingOverChangesNoState) {
  for (size_t i = 0; i < kFetchStateCount; ++i) {
    const FetchRow* row = FindFetchRow(StateAt(i), FetchEvent::kHandOver);
    if (row == nullptr) continue;
    EXPECT_EQ(row->next, StateAt(i)) << FetchStateName(StateAt(i));
  }
}

TEST(FetchTableTest, NamesAreThereAndDiffer) {
  std::set<std::string> names;
  for (size_t i = 0; i < kFetchStateCount; ++i) names.insert(FetchStateName(StateAt(i)));
  EXPECT_EQ(names.size(), kFetchStateCount);
  names.clear();
  for (size_t i = 0; i < kFetchEventCount; ++i) names.insert(FetchEventName(EventAt(i)));
  EXPECT_EQ(names.size(), kFetchEventCount);
}

}  // namespace
}  // namespace tryst
