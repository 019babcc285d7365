#include "channel/ops/fetch_keys.h"

#include <malloc.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

TensorKey Key(int number) {
  return TensorKeyPrefix::Make("/job:p/replica:0/task:0/device:CPU:0", 1,
                               "/job:c/replica:0/task:0/device:CPU:0", absl::StrCat("e", number))
      ->At(0, 0);
}

TEST(FetchKeysTest, TheOldestNumberGoesToTheNewestKey) {
  FetchKeys keys(4, 1 << 20);
  for (int i = 0; i < 4; ++i) {
    FetchKey* key = keys.Intern(Key(i));
    EXPECT_EQ(key->id, static_cast<uint32_t>(i));
    key->told = 7;
  }
  EXPECT_EQ(keys.Intern(Key(2))->told, 7u);
  FetchKey* fifth = keys.Intern(Key(4));
  EXPECT_EQ(fifth->id, 0u);
  EXPECT_EQ(fifth->told, 0u) << "the peer knows another key by that number";
  EXPECT_EQ(keys.Find(Key(0)), nullptr);
  FetchKey* sixth = keys.Intern(Key(0));
  EXPECT_EQ(sixth->id, 1u);
  EXPECT_EQ(sixth->told, 0u) << "nor does the place of a key that has left say that it was told";
  EXPECT_EQ(keys.Find(Key(1)), nullptr);
}

// The peer must not be made to remember more than a bound, however long the texts are.
TEST(FetchKeysTest, NumbersBeginAgainBehindSoManyBytesOfTexts) {
  const uint64_t each = Key(0).text().size();
  FetchKeys keys(100, 3 * each);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(keys.Intern(Key(i))->id, static_cast<uint32_t>(i % 3));
    EXPECT_EQ(keys.Find(Key(i - 3)), nullptr);
  }
  keys.ForgetIds();
  EXPECT_EQ(keys.Intern(Key(8))->id, 0u);
}

TEST(FetchKeysTest, WhatIsAskedForStaysWhenItsNumberIsGivenAway) {
  FetchAsk ask;
  FetchKeys keys(2, 1 << 20);
  keys.Join(&ask, keys.Intern(Key(0)), 1);
  for (int i = 1; i < 10; ++i) keys.Intern(Key(i));
  FetchKey* key = keys.Find(Key(0));
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(key->asks.front(), &ask);
  EXPECT_EQ(keys.Intern(Key(0)), key);
  EXPECT_NE(key->id, FetchKey::kNoId);
  keys.ForgetIds();
  EXPECT_EQ(keys.Find(Key(0)), key);
  EXPECT_EQ(keys.Find(Key(9)), nullptr);
  keys.Leave(&ask);
  EXPECT_EQ(keys.Find(Key(0)), nullptr);
}

TEST(FetchKeysTest, ClearForgetsAll) {
  FetchKeys keys(65536, 64 << 20);
  for (int i = 0; i < 5000; ++i) keys.Intern(Key(i))->told = 7;
  EXPECT_TRUE(keys.has_many());
  const TensorKey known = Key(17);
  ASSERT_EQ(keys.Intern(known)->told, 7u);
  keys.Clear();
  EXPECT_FALSE(keys.has_many());
  EXPECT_EQ(keys.Find(known), nullptr);
  FetchKey* again = keys.Intern(known);
  EXPECT_EQ(again->id, 0u);
  EXPECT_EQ(again->told, 0u) << "it must be told anew";
}

// It counts the C library's heap; a sanitizer has its own.
int64_t HeapBytes() { return static_cast<int64_t>(mallinfo2().uordblks); }

TEST(FetchKeysTest, ClearGivesTheMemoryBack) {
  FetchKeys keys(65536, 64 << 20);
  const int64_t before = HeapBytes();
  for (int i = 0; i < 5000; ++i) keys.Intern(Key(i));
  keys.ForgetIds();
  for (int i = 0; i < 5000; ++i) keys.Intern(Key(i));
  keys.Clear();
  EXPECT_LT(HeapBytes() - before, 5000);
}

// The copy of a key that was asked for before carries its number.
TEST(FetchKeysTest, AKeyThatIsUsedAgainIsFoundByItsNumber) {
  FetchKeys keys(2, 1 << 20);
  const TensorKey known = Key(0);
  FetchKey* const first = keys.Intern(known);
  EXPECT_EQ(known.note(), 0u);
  EXPECT_EQ(keys.Intern(known), first);
  const TensorKey copy = Key(0);  // This is the first text at another place.
  copy.set_note(0);
  EXPECT_EQ(keys.Intern(copy), first);
  EXPECT_TRUE(first->key.SharesTextWith(copy)) << "the owner's present copy";
  const TensorKey other = Key(1);
  other.set_note(0);
  EXPECT_NE(keys.Intern(other), first) << "the number is another key's";
  EXPECT_EQ(other.note(), 1u);
  keys.ForgetIds();
  EXPECT_EQ(keys.Intern(known)->id, 0u) << "no number is known any more";
  const TensorKey stale = Key(2);
  stale.set_note(1);
  EXPECT_EQ(keys.Intern(stale)->id, 1u);
}

TEST(FetchKeysTest, TheBytesOfTextsAreCountedFromTheFirstNumberOn) {
  const uint64_t each = Key(0).text().size();
  FetchKeys keys(100, 3 * each);
  for (const bool clear : {false, true}) {
    keys.Intern(Key(0));
    keys.Intern(Key(1));
    clear ? keys.Clear() : keys.ForgetIds();
    for (int i = 2; i < 5; ++i) EXPECT_EQ(keys.Intern(Key(i))->id, static_cast<uint32_t>(i - 2));
    clear ? keys.Clear() : keys.ForgetIds();
  }
}

TEST(FetchKeysTest, AKeyLeavesWithItsLastAskWhereItHasNoNumber) {
  FetchAsk one, other;
  FetchKeys keys(1, 1 << 20);
  FetchKey* const key = keys.Intern(Key(0));
  keys.Join(&one, key, 1);
  keys.Join(&other, key, 2);
  EXPECT_EQ(one.of, key);
  EXPECT_EQ(other.step, 2);
  keys.Leave(&one);
  EXPECT_EQ(one.of, nullptr);
  keys.Leave(&other);
  EXPECT_EQ(keys.Find(Key(0)), key) << "it has its number";
  keys.Join(&one, key, 1);
  keys.Join(&other, key, 2);
  keys.Intern(Key(1));
  keys.Leave(&one);
  EXPECT_EQ(keys.Find(Key(0)), key) << "one is asked for";
  EXPECT_EQ(key->id, FetchKey::kNoId);
  keys.Leave(&other);
  EXPECT_EQ(keys.Find(Key(0)), nullptr);
  EXPECT_EQ(keys.Intern(Key(2)), key) << "its entry is used again";
  EXPECT_EQ(keys.Find(Key(1)), nullptr);
}

TEST(FetchKeysTest, AnAskGetsAnotherNumberWhenItsKeyHasLostIt) {
  FetchAsk ask;
  FetchKeys keys(2, 1 << 20);
  keys.Join(&ask, keys.Intern(Key(0)), 1);
  keys.Number(ask.of);
  EXPECT_EQ(ask.of->id, 0u) << "it has one";
  keys.Intern(Key(1));
  keys.Intern(Key(2));
  ASSERT_EQ(ask.of->id, FetchKey::kNoId);
  keys.Number(ask.of);
  EXPECT_EQ(ask.of->id, 1u);
  EXPECT_EQ(keys.Find(Key(1)), nullptr) << "which that one had";
  keys.Leave(&ask);
}

// ---- The line of a key and step ----

TEST(FetchKeysTest, EachStepOfAKeyHasALineOfItsOwn) {
  FetchAsk first, third, second;
  FetchKeys keys(4, 1 << 20);
  FetchKey* const key = keys.Intern(Key(0));
  EXPECT_EQ(FetchKeys::AskOf(*key, 0), nullptr);
  first.state = third.state = second.state = FetchState::kQueued;
  keys.Join(&first, key, 1);
  keys.Join(&third, key, 3);
  keys.Join(&second, key, 2);
  EXPECT_EQ(FetchKeys::AskOf(*key, 1), &first);
  EXPECT_EQ(FetchKeys::AskOf(*key, 2), &second);
  EXPECT_EQ(FetchKeys::AskOf(*key, 3), &third);
  EXPECT_EQ(FetchKeys::AskOf(*key, 4), nullptr);
  EXPECT_EQ(FetchKeys::AskOf(*key, 0), nullptr);
  keys.Leave(&third);
  EXPECT_EQ(FetchKeys::AskOf(*key, 3), nullptr);
  EXPECT_EQ(FetchKeys::AskOf(*key, 2), &second);
  keys.Leave(&first);
  keys.Leave(&second);
  keys.Join(&first, key, -7);
  EXPECT_EQ(FetchKeys::AskOf(*key, -7), &first);
  EXPECT_EQ(FetchKeys::AskOf(*key, 2), nullptr);
  keys.Leave(&first);
}

class NoOwner final : public FetchOpOwner {
  void OnOpCancelled(FetchOp*) override {}
  void OnOpTimer(FetchOp*) override {}
  void OnOpDelivered(FetchOp*) override {}
};

TEST(FetchKeysTest, WhatIsGivenUpIsJoinedOnlyWhileSomebodyWaitsThere) {
  NoOwner owner;
  FetchOp op(&owner);
  FetchAsk ask, next;
  FetchKeys keys(4, 1 << 20);
  FetchKey* const key = keys.Intern(Key(0));
  keys.Join(&ask, key, 1);
  ask.state = FetchState::kAsked;
  EXPECT_EQ(FetchKeys::AskOf(*key, 1), &ask) << "it was asked for ahead";
  for (const FetchState state :
       {FetchState::kLeaving, FetchState::kLeft, FetchState::kFencedLeaving}) {
    ask.state = state;
    EXPECT_EQ(FetchKeys::AskOf(*key, 1), nullptr);
    ask.front = &op;
    EXPECT_EQ(FetchKeys::AskOf(*key, 1), &ask) << "its caller has not been told";
    ask.front = nullptr;
    ask.behind.Push(&op);
    EXPECT_EQ(FetchKeys::AskOf(*key, 1), &ask) << "else a later fetch would be asked for before";
    ask.behind.Remove(&op);
  }
  next.state = FetchState::kQueued;
  keys.Join(&next, key, 1);
  EXPECT_EQ(FetchKeys::AskOf(*key, 1), &next);
  keys.Leave(&ask);
  keys.Leave(&next);
}

}  // namespace
}  // namespace tryst
