#include "weights/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weights/decider.h"

namespace tryst {
namespace {

LogEntry Owners(uint64_t term, std::vector<uint64_t> incarnations, uint64_t floor = 0) {
  LogEntry entry;
  entry.kind = EntryKind::kOwners;
  entry.term = term;
  entry.floor = floor;
  entry.incarnations = std::move(incarnations);
  entry.root[3] = 9;
  return entry;
}

LogEntry Members(std::vector<uint64_t> incarnations) {
  LogEntry entry;
  entry.kind = EntryKind::kMembers;
  entry.incarnations = std::move(incarnations);
  return entry;
}

LogEntry Sealed(uint64_t number, uint64_t term, size_t owners = 2) {
  LogEntry entry;
  entry.kind = EntryKind::kSealed;
  entry.version = {number, number * 1000 + 1};
  entry.term = term;
  entry.digests.resize(owners);
  for (size_t i = 0; i < owners; ++i) entry.digests[i][0] = static_cast<uint8_t>(i + 1);
  entry.root[15] = static_cast<uint8_t>(number);
  return entry;
}

LogEntry Of(EntryKind kind, const WeightVersion& version) {
  LogEntry entry;
  entry.kind = kind;
  entry.version = version;
  return entry;
}

LogEntry Active(uint64_t number) { return Of(EntryKind::kActive, Sealed(number, 1).version); }

TEST(WeightLogTest, ANumberIsSealedOnceOrDropped) {
  WeightLog log;
  ASSERT_TRUE(log.Append(Owners(1, {7, 5})).ok());
  ASSERT_TRUE(log.Append(Sealed(3, 1)).ok());
  EXPECT_FALSE(log.Append(Sealed(3, 1)).ok());
  EXPECT_FALSE(log.Append(Sealed(2, 1)).ok()) << "it is not above what is sealed";
  EXPECT_FALSE(log.Append(Of(EntryKind::kDropped, {2, 0})).ok()) << "its fate is known";
  ASSERT_TRUE(log.Append(Of(EntryKind::kDropped, {5, 0})).ok());
  EXPECT_FALSE(log.Append(Sealed(5, 1)).ok());
  EXPECT_FALSE(log.Append(Sealed(4, 1)).ok()) << "a drop takes all below with it";
  ASSERT_TRUE(log.Append(Sealed(6, 1)).ok());
  ASSERT_TRUE(log.Append(Of(EntryKind::kDropped, Sealed(3, 1).version)).ok());
  EXPECT_FALSE(log.Append(Active(3)).ok());
  ASSERT_TRUE(log.Append(Active(6)).ok());
  EXPECT_FALSE(log.Append(Active(6)).ok());
  EXPECT_FALSE(log.Append(Of(EntryKind::kDropped, Sealed(6, 1).version)).ok());
  EXPECT_EQ(log.state().length, 6);
  EXPECT_EQ(log.state().active.version.number, 6);
}

TEST(WeightLogTest, ATermBeginsAfterTheLastOne) {
  WeightLog log;
  EXPECT_FALSE(log.Append(Sealed(1, 0)).ok()) << "nobody has declared";
  EXPECT_FALSE(log.Append(Owners(2, {1})).ok());
  EXPECT_FALSE(log.Append(Owners(1, {4, 4})).ok());
  EXPECT_FALSE(log.Append(Owners(1, {4, 0})).ok());
  EXPECT_FALSE(log.Append(Owners(1, {})).ok());
  ASSERT_TRUE(log.Append(Owners(1, {4, 8}, 10)).ok());
  ASSERT_TRUE(log.Append(Owners(2, {4, 9})).ok());
  EXPECT_FALSE(log.Append(Owners(3, {4, 8})).ok()) << "8 was replaced";
  EXPECT_FALSE(log.Append(Sealed(11, 1)).ok()) << "it is of the term before";
  EXPECT_FALSE(log.Append(Sealed(10, 2)).ok()) << "somebody has seen 10 sealed";
  EXPECT_FALSE(log.Append(Sealed(11, 2, 3)).ok()) << "there are two owners";
  EXPECT_TRUE(log.Append(Sealed(11, 2)).ok());
}

TEST(WeightLogTest, AnActiveVersionEndsThoseBeforeIt) {
  WeightLog log;
  ASSERT_TRUE(log.Append(Owners(1, {4, 8})).ok());
  for (uint64_t number = 1; number <= kMaxOpenVersions; ++number) {
    ASSERT_TRUE(log.Append(Sealed(number, 1)).ok());
  }
  EXPECT_FALSE(log.Append(Sealed(100, 1)).ok());
  LogEntry other = Active(3);
  ++other.version.birth;
  EXPECT_FALSE(log.Append(other).ok());
  ASSERT_TRUE(log.Append(Active(3)).ok());
  EXPECT_EQ(log.state().open.size(), kMaxOpenVersions - 3);
  EXPECT_FALSE(log.Append(Active(2)).ok());
}

TEST(WeightLogTest, WhoBeginsWithAStateTellsItToThoseBehind) {
  WeightLog whole;
  ASSERT_TRUE(whole.Append(Owners(1, {4, 8})).ok());
  WeightLog log;
  log.Restart(whole.state());
  ASSERT_TRUE(log.Append(Sealed(1, 1)).ok());
  const LogSlice slice = log.ReadFrom(0, 8);
  ASSERT_TRUE(slice.base.has_value());
  EXPECT_EQ(slice.base->owners, whole.state().owners);
  EXPECT_EQ(slice.first, 1);
  EXPECT_EQ(slice.entries.size(), 1);
}

TEST(WeightLogTest, WhoIsFarBehindGetsWhatTheOldEntriesSay) {
  WeightLog log;
  ASSERT_TRUE(log.Append(Owners(1, {4, 8})).ok());
  for (uint64_t number = 1; number <= 100; ++number) {
    ASSERT_TRUE(log.Append(Sealed(number, 1)).ok());
    ASSERT_TRUE(log.Append(Active(number)).ok());
  }
  LogState state;
  const LogSlice first = log.ReadFrom(0, 8);
  ASSERT_TRUE(first.base.has_value());
  EXPECT_EQ(first.first, 201 - kKeptEntries);
  EXPECT_EQ(first.entries.size(), 8);
  ASSERT_TRUE(*ApplySlice(first, &state));
  EXPECT_FALSE(*ApplySlice(first, &state)) << "twice is once";
  ASSERT_TRUE(*ApplySlice(log.ReadFrom(state.length, 1000), &state));
  EXPECT_EQ(state.length, 201);
  EXPECT_EQ(state.active.version, log.state().active.version);
  EXPECT_FALSE(log.ReadFrom(state.length, 8).base.has_value());
  LogSlice gap = log.ReadFrom(200, 8);
  LogState behind;
  gap.base.reset();
  EXPECT_FALSE(*ApplySlice(gap, &behind)) << "what is missing before it cannot be left out";
  LogSlice wrong;
  wrong.first = 201;
  wrong.entries = {Active(7)};
  EXPECT_EQ(ApplySlice(wrong, &state).status().code(), absl::StatusCode::kDataLoss);
}

TEST(WeightLogTest, EncodingsComeBack) {
  WeightLog log;
  for (const LogEntry& entry :
       {Owners(1, {4, 8}, 2), Members({1, 2, 3}), Sealed(3, 1), Sealed(4, 1), Active(3),
        Of(EntryKind::kDropped, Sealed(4, 1).version), Sealed(5, 1)}) {
    const std::string bytes = EncodeEntry(entry);
    const absl::StatusOr<LogEntry> back = DecodeEntry(bytes);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(EncodeEntry(*back), bytes);
    ASSERT_TRUE(log.Append(*back).ok());
  }
  LogState state = log.state();
  state.replaced = {5, 6};
  const std::string bytes = EncodeState(state);
  const absl::StatusOr<LogState> back = DecodeState(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeState(*back), bytes);
  EXPECT_EQ(back->replaced, state.replaced);
  EXPECT_EQ(back->active.version, log.state().active.version);
  EXPECT_EQ(back->members, log.state().members);
}

TEST(WeightLogTest, TheLongestOfEachKindIsWithinItsBound) {
  std::vector<uint64_t> most(kMaxGroup);
  for (size_t i = 0; i < most.size(); ++i) most[i] = ~uint64_t{0} - most.size() + i;
  EXPECT_LE(EncodeEntry(Members(most)).size(), kMaxEntryBytes);
  LogEntry sealed = Sealed(~uint64_t{0}, ~uint64_t{0}, kMaxOwners);
  sealed.version.birth = ~uint64_t{0};
  EXPECT_LE(EncodeEntry(sealed).size(), kMaxEntryBytes);
  EXPECT_TRUE(DecodeEntry(EncodeEntry(sealed)).ok());
  LogState state;
  state.length = state.term = state.floor = ~uint64_t{0};
  state.owners.assign(most.begin(), most.begin() + kMaxOwners);
  state.replaced.assign(most.begin(), most.begin() + kMaxReplaced);
  state.members = most;
  state.active = sealed;
  for (size_t i = 0; i < kMaxOpenVersions; ++i) state.open.push_back(sealed);
  EXPECT_LE(EncodeState(state).size(), kMaxStateBytes);
  most.push_back(~uint64_t{0});
  EXPECT_FALSE(DecodeEntry(EncodeEntry(Members(most))).ok());
}

// One entry replaces every owner of the set.
TEST(WeightLogTest, AllWhomOneEntryReplacesAreRemembered) {
  std::vector<uint64_t> first(kMaxOwners), second(kMaxOwners);
  for (size_t i = 0; i < first.size(); ++i) first[i] = i + 1, second[i] = i + 100'000;
  WeightLog log;
  ASSERT_TRUE(log.Append(Owners(1, first)).ok());
  ASSERT_TRUE(log.Append(Owners(2, second)).ok());
  for (const uint64_t owner : {first.front(), first[first.size() / 2], first.back()}) {
    second[0] = owner;
    EXPECT_FALSE(log.state().Check(Owners(3, second)).ok()) << owner;
  }
}

// A parser makes a message of a hundred bytes of two.
TEST(WeightLogTest, BytesThatBecomeMuchMemoryAreNotParsed) {
  std::string empty;
  for (size_t i = 0; i <= kMaxOpenVersions + 1; ++i) empty += std::string("\x3a\x00", 2);
  EXPECT_FALSE(DecodeState(empty).ok()) << "more versions than there may be";
  const std::string good = EncodeState(LogState{});
  EXPECT_TRUE(DecodeState(good).ok());
  EXPECT_FALSE(DecodeState(good + std::string("\x7b\x7c", 2)).ok()) << "a group";
  EXPECT_FALSE(DecodeState(good + std::string("\xf8\x01\x00", 3)).ok()) << "an unknown field";
  EXPECT_FALSE(DecodeEntry(EncodeEntry(Members({1})) + std::string("\x7b\x7c", 2)).ok());
}

// Its length is said again and again.
TEST(WeightLogTest, AStateOfMoreBytesThanAnyHasIsNotParsed) {
  const auto padded = [](size_t size) {
    std::string bytes = EncodeState(LogState{});
    if ((size - bytes.size()) % 2 != 0) bytes += std::string("\x08\x80\x00", 3);
    while (bytes.size() < size) bytes += std::string("\x08\x00", 2);
    return bytes;
  };
  ASSERT_EQ(padded(kMaxStateBytes).size(), kMaxStateBytes);
  EXPECT_TRUE(DecodeState(padded(kMaxStateBytes)).ok());
  EXPECT_FALSE(DecodeState(padded(kMaxStateBytes + 1)).ok());
}

TEST(WeightLogTest, AStateKeepsToTheRulesOfEntries) {
  LogState state;
  state.term = 1;
  state.floor = 5;
  state.owners = {4, 8};
  state.active = Sealed(5, 2);
  ASSERT_TRUE(DecodeState(EncodeState(state)).ok());
  LogState wrong = state;
  wrong.owners = {4, 4};
  EXPECT_FALSE(DecodeState(EncodeState(wrong)).ok());
  wrong = state;
  wrong.active.kind = EntryKind::kMembers;
  EXPECT_FALSE(DecodeState(EncodeState(wrong)).ok());
  wrong = state;
  wrong.active.digests.clear();
  EXPECT_FALSE(DecodeState(EncodeState(wrong)).ok());
  wrong = state;
  wrong.active.version.birth = 0;
  EXPECT_FALSE(DecodeState(EncodeState(wrong)).ok());
  wrong = state;
  wrong.active = {};
  wrong.floor = kMaxOpenVersions + 1;
  for (uint64_t number = 1; number <= kMaxOpenVersions; ++number) {
    wrong.open.push_back(Sealed(number, 2));
  }
  EXPECT_TRUE(DecodeState(EncodeState(wrong)).ok());
  wrong.open.push_back(Sealed(kMaxOpenVersions + 1, 2));
  EXPECT_FALSE(DecodeState(EncodeState(wrong)).ok()) << "more than may be open";
}

// What a stranger sends may be anything; what is taken keeps to the bounds.
TEST(WeightLogTest, ChangedBytesAreRefusedOrAreAnEntry) {
  WeightLog log;
  for (const LogEntry& entry :
       {Owners(1, {4, 8}), Members({1, 2, 3}), Sealed(3, 1), Sealed(4, 1), Active(3)}) {
    ASSERT_TRUE(log.Append(entry).ok());
  }
  const std::string good[] = {EncodeEntry(Sealed(3, 1)), EncodeEntry(Members({1, 2})),
                              EncodeState(log.state())};
  uint64_t random = 7'100'000'001;
  size_t refused = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string bytes = good[i % 3];
    for (int change = 0; change <= i % 4; ++change) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      bytes[(random >> 33) % bytes.size()] = static_cast<char>(random >> 56);
    }
    if (i % 5 == 0) bytes.resize(bytes.size() - (random >> 40) % bytes.size());
    const absl::StatusOr<LogEntry> entry = DecodeEntry(bytes);
    if (entry.ok()) {
      EXPECT_LE(entry->digests.size(), kMaxOwners);
      (void)log.state().Check(*entry);
    }
    const absl::StatusOr<LogState> state = DecodeState(bytes);
    if (state.ok()) {
      EXPECT_LE(state->open.size(), kMaxOpenVersions);
    }
    refused += !entry.ok() && !state.ok();
  }
  EXPECT_GT(refused, 1000);
}

TEST(LogStoreTest, AnAppendComparesLengthAndLease) {
  LogStore store(77, 1000);
  EXPECT_EQ(store.Append(0, 1, Owners(1, {4})).outcome, DeciderOutcome::kNoLease);
  const uint64_t lease = store.TakeLease(0).lease;
  EXPECT_EQ(store.TakeLease(999).outcome, DeciderOutcome::kNoLease);
  EXPECT_EQ(store.Append(0, lease, Owners(1, {4})).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(store.Append(0, lease, Owners(1, {4})).outcome, DeciderOutcome::kOtherLength);
  EXPECT_EQ(store.KeepLease(lease, 900).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(store.TakeLease(1899).outcome, DeciderOutcome::kNoLease);
  const uint64_t next = store.TakeLease(1900).lease;
  EXPECT_NE(next, lease);
  EXPECT_EQ(store.Append(1, lease, Owners(2, {5})).outcome, DeciderOutcome::kNoLease);
  EXPECT_EQ(store.KeepLease(lease, 1900).outcome, DeciderOutcome::kNoLease);
  EXPECT_EQ(store.Append(1, next, Owners(2, {5})).outcome, DeciderOutcome::kDone);
  EXPECT_EQ(store.ReadFrom(0).slice.entries.size(), 2);
  EXPECT_EQ(store.ReadFrom(1).slice.entries.size(), 1);
  EXPECT_EQ(store.ReadFrom(0).log, 77);
}

}  // namespace
}  // namespace tryst
