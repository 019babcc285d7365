// What a tensor may cost, counted: the budget of docs/COSTS.md. Both ends run on this thread, over
// the software NIC, with the code that ships.

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/contract/hop_budget/allocations.h"
#include "tests/contract/hop_budget/counted_pair.h"
#include "tests/process/pair/worker_pair.h"

namespace tryst {
namespace {

// One row of the budget: what is fetched and how, and what it may cost. Add a row for a new case.
struct Row {
  std::string name;
  uint64_t bytes = 0;
  bool into_place = false;  // The caller gives dtype, shape and memory.
  std::function<void(TransportsOptions*)> adjust;
  double messages = 0;  // Ring messages and tensor writes for each tensor, in both directions.
  double doorbells = 0;
  int copies_at_producer = 0;
  int copies_at_consumer = 0;
  double hand_offs = 0;    // To the consumer's poller thread.
  double allocations = 0;  // In the whole process.
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

class HopBudgetTest : public ::testing::TestWithParam<Row> {
 protected:
  HopBudgetTest() : pair_(MakeCountedPair(&tally_, GetParam().adjust)) {
    const TensorShape shape = *TensorShape::Make({static_cast<int64_t>(GetParam().bytes)});
    source_ = *Tensor::Allocate(DType::kUint8, shape);
    if (GetParam().into_place) args_.destination = *Tensor::Allocate(DType::kUint8, shape);
  }

  // Moves one tensor, from Send to `done`. The result stays in fetch_ until the next one.
  void Move() {
    const absl::Status sent = pair_->step()->Send(key_, SendArgs(), source_, false);
    ASSERT_TRUE(sent.ok()) << sent;
    fetch_.Start(pair_.get(), 1, key_, args_);
    TurnUntil(pair_.get(), [this] { return fetch_.ended; });
  }

  NicTally tally_;
  std::unique_ptr<WorkerPair> pair_;
  const TensorKey key_ = WorkerPair::Key("hop");
  Tensor source_;
  RecvArgs args_;
  CountedFetch fetch_;
};

TEST_P(HopBudgetTest, IsKept) {
  const Row& row = GetParam();
  for (int i = 0; i < kWarmUp; ++i) {
    Move();
    if (HasFatalFailure()) return;
  }
  tally_ = NicTally();
  const uint64_t tasks = pair_->consumer_tasks();
  const uint64_t allocations = AllocationsSoFar();
  for (int i = 0; i < kCounted; ++i) Move();
  const double allocated = static_cast<double>(AllocationsSoFar() - allocations);
  const auto each = [](uint64_t count) { return static_cast<double>(count) / kCounted; };

  EXPECT_DOUBLE_EQ(each(tally_.messages + tally_.writes), row.messages);
  // One ack page serves many tensors that had no message to carry their ack.
  EXPECT_NEAR(each(tally_.doorbells), row.doorbells, 0.15);
  EXPECT_LE(each(tally_.acks), 0.15);
  EXPECT_DOUBLE_EQ(each(pair_->consumer_tasks() - tasks), row.hand_offs);
  EXPECT_DOUBLE_EQ(allocated / kCounted, row.allocations);
  EXPECT_EQ(tally_.sources_registered, 0u);
  // The key of the caller's memory is valid for one tensor.
  const bool lends_its_own = row.into_place && tally_.writes > 0;
  EXPECT_DOUBLE_EQ(each(tally_.destinations_registered), lends_its_own ? 1 : 0);

  // The NIC must read and write the tensors' own memory: then nothing was copied.
  const auto at = [](const Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.data()); };
  const bool direct = tally_.writes > 0;
  EXPECT_EQ(direct && tally_.write_from == at(source_) ? 0 : 1, row.copies_at_producer);
  EXPECT_EQ(direct && tally_.write_to == at(fetch_.got) ? 0 : 1, row.copies_at_consumer);
  if (row.into_place) {
    EXPECT_EQ(fetch_.got.data(), args_.destination.data());
  }
}

Row MakeRow(const char* name, uint64_t bytes, bool into_place,
            std::function<void(TransportsOptions*)> adjust = nullptr) {
  Row row;
  row.name = name;
  row.bytes = bytes;
  row.into_place = into_place;
  row.adjust = std::move(adjust);
  row.hand_offs = 1;
  return row;
}

std::vector<Row> Rows() {
  const auto no_digests = [](TransportsOptions* pool) { pool->link.digests = false; };
  std::vector<Row> rows;
  // The one allocation is the memory of the delivered tensor.
  rows.push_back(MakeRow("SmallOfUnknownShape", 1000, false));
  rows.back().messages = rows.back().doorbells = 2;
  rows.back().copies_at_producer = rows.back().copies_at_consumer = 1;
  rows.back().allocations = 1;
  rows.push_back(MakeRow("SmallIntoPlace", 1000, true));
  rows.back().messages = rows.back().doorbells = 2;
  rows.back().copies_at_producer = rows.back().copies_at_consumer = 1;
  rows.push_back(MakeRow("LargestInsideAMessage", 8192, true));
  rows.back().messages = rows.back().doorbells = 2;
  rows.back().copies_at_producer = rows.back().copies_at_consumer = 1;
  rows.push_back(MakeRow("ShapeKnown", 100'000, true, no_digests));
  rows.back().messages = rows.back().doorbells = 2;
  // The digest is a record of its own after the write, posted with the same doorbell.
  rows.push_back(MakeRow("ShapeKnownWithDigest", 100'000, true));
  rows.back().messages = 3;
  rows.back().doorbells = 2;
  // The shape follows the write.
  rows.push_back(MakeRow("ShapeUnknownUpToTheLandingSize", 100'000, false, no_digests));
  rows.back().messages = 3;
  rows.back().doorbells = 2;
  // The size of a key's last tensor is remembered, so only its first one is requested twice.
  const auto small_landings = [](TransportsOptions* pool) {
    pool->link.digests = false;
    pool->offered_bytes = 16'384;
  };
  rows.push_back(MakeRow("LargerThanTheLandingSizeAsLastTime", 100'000, false, small_landings));
  rows.back().messages = 3;
  rows.back().doorbells = 2;
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Rows, HopBudgetTest, ::testing::ValuesIn(Rows()),
                         [](const auto& info) { return info.param.name; });

// A tensor's memory is registered when it is first sent, and its slices with it.
TEST(HopBudgetOtherTest, ASourceIsRegisteredOnce) {
  NicTally tally;
  const auto pair = MakeCountedPair(&tally, nullptr);
  const TensorKey key = WorkerPair::Key("sources");
  CountedFetch fetch;
  const auto move = [&](const Tensor& source) {
    ASSERT_TRUE(pair->step()->Send(key, SendArgs(), source, false).ok());
    fetch.Start(pair.get(), 1, key, RecvArgs());
    TurnUntil(pair.get(), [&fetch] { return fetch.ended; });
    ASSERT_EQ(tally.write_from, reinterpret_cast<uint64_t>(source.data()));
  };
  move(*Tensor::Allocate(DType::kUint8, {100'000}));  // This also connects.
  for (int tensors = 0; tensors < 4; ++tensors) {
    const Tensor source = *Tensor::Allocate(DType::kUint8, {200'000});
    tally = NicTally();
    move(source);
    EXPECT_EQ(tally.sources_registered, 1u);
    move(source);
    move(*source.Slice(100'000, 200'000));
    move(*source.Slice(50'000, 150'000));
    EXPECT_EQ(tally.sources_registered, 1u);
  }
}

// The producer never sends the same size twice, so each tensor has to ask for a destination.
TEST(HopBudgetOtherTest, ShapeUnknownAndLargerTakesFourMessages) {
  NicTally tally;
  const auto pair = MakeCountedPair(&tally, [](TransportsOptions* pool) {
    pool->link.digests = false;
    pool->offered_bytes = 16'384;
  });
  const TensorKey key = WorkerPair::Key("larger");
  CountedFetch fetch;
  for (int i = 0; i < 9; ++i) {
    const int64_t bytes = int64_t{20'000} << i;  // Larger than the last one.
    const Tensor source = *Tensor::Allocate(DType::kUint8, {bytes});
    ASSERT_TRUE(pair->step()->Send(key, SendArgs(), source, false).ok());
    tally = NicTally();
    fetch.Start(pair.get(), 1, key, RecvArgs());
    TurnUntil(pair.get(), [&fetch] { return fetch.ended; });
    // Two messages each way; the write comes before the last.
    EXPECT_EQ(tally.messages, 4u) << bytes;
    EXPECT_EQ(tally.writes, 1u) << bytes;
    EXPECT_EQ(tally.write_from, reinterpret_cast<uint64_t>(source.data()));
    EXPECT_EQ(tally.write_to, reinterpret_cast<uint64_t>(fetch.got.data()));
  }
}

// For a key that recurs in every step, the request arrives before the tensor. After Send only the
// write is left, whether or not the fetch has been made by then.
TEST(HopBudgetOtherTest, AskedAheadTakesOneMessageAfterSend) {
  NicTally tally;
  const auto pair = MakeCountedPair(&tally, [](TransportsOptions* pool) {
    pool->standing_ms = 400'000;
    pool->link.digests = false;
  });
  const TensorKey key = WorkerPair::Key("recurs");
  const Tensor source = *Tensor::Allocate(DType::kUint8, {100'000});
  RecvArgs args;
  args.recurring = true;
  CountedFetch fetch;
  uint64_t tasks = 0;
  uint64_t allocations = 0;
  for (int step = 0; step < kWarmUp + kCounted; ++step) {
    const bool habit = step >= 10;  // From the fourth step on, a standing receive is made.
    if (step == kWarmUp) {
      tasks = pair->consumer_tasks();
      allocations = AllocationsSoFar();
    }
    const bool fetch_first = step % 2 == 0;
    if (fetch_first) fetch.Start(pair.get(), step, key, args);
    for (int turns = 0; habit && turns < 5; ++turns) pair->Turn();
    tally = NicTally();
    ASSERT_TRUE(pair->step()->Send(key, SendArgs(), source, false).ok());
    if (habit) {
      TurnUntil(pair.get(), [&] { return tally.writes > 0; });
      ASSERT_EQ(tally.messages, 0u) << step;
    }
    if (!fetch_first) fetch.Start(pair.get(), step, key, args);
    TurnUntil(pair.get(), [&] { return fetch.ended; });
    if (HasFatalFailure()) return;
    if (!habit) continue;
    TurnUntil(pair.get(), [&] { return tally.messages > 0; });
    // The one message is the standing receive for the next step.
    ASSERT_EQ(tally.messages, 1u) << step;
    ASSERT_EQ(tally.writes, 1u) << step;
    ASSERT_EQ(tally.write_from, reinterpret_cast<uint64_t>(source.data()));
    ASSERT_EQ(tally.write_to, reinterpret_cast<uint64_t>(fetch.got.data()));
  }
  EXPECT_EQ(pair->consumer_tasks() - tasks, uint64_t{kCounted});
  EXPECT_EQ(AllocationsSoFar(), allocations);
}

// Requests and small tensors of one peer share messages, without waiting for more.
TEST(HopBudgetOtherTest, ThousandKeysAtOnceTakeAFewMessages) {
  constexpr int kKeys = 1000;
  NicTally tally;
  const auto pair = MakeCountedPair(&tally, nullptr);
  std::vector<TensorKey> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(WorkerPair::Key("many" + std::to_string(i)));
  const Tensor source = *Tensor::Allocate(DType::kUint8, {8});
  for (int step = 0; step < 4; ++step) {
    for (const TensorKey& key : keys) {
      ASSERT_TRUE(pair->step()->Send(key, SendArgs(), source, false).ok());
    }
    tally = NicTally();
    bool ended = false;
    pair->consumer()->FetchMany(step, keys, RecvArgs(),
                                [&ended](absl::Status first, absl::Span<Received> results) {
                                  EXPECT_TRUE(first.ok()) << first;
                                  EXPECT_EQ(results.size(), size_t{kKeys});
                                  ended = true;
                                });
    TurnUntil(pair.get(), [&ended] { return ended; });
    EXPECT_EQ(tally.writes, 0u);
    // Slots allow 128 at a time, so there are eight rounds. In the first step the keys' text
    // travels, too.
    EXPECT_LE(tally.messages, step == 0 ? 40u : 20u);
    EXPECT_LE(tally.doorbells, 20u);
  }
}

TEST(HopBudgetOtherTest, SameProcessTakesNothing) {
  ThreadAlarms alarms;
  LocalRendezvous::Options options;
  options.check_immutable = false;
  LocalRendezvous step(options, &alarms);
  const TensorKey key = WorkerPair::Key("local");
  const Tensor source = *Tensor::Allocate(DType::kUint8, {1000});
  const void* got = nullptr;
  uint64_t before = 0;
  for (int i = 0; i < kWarmUp + kCounted; ++i) {
    if (i == kWarmUp) before = AllocationsSoFar();
    ASSERT_TRUE(step.Send(key, SendArgs(), source, false).ok());
    got = nullptr;
    step.RecvAsync(key, RecvArgs(), [&](Received&& received) {
      got = received.tensor.data();  // It ran on this thread, before the call returned.
    });
    ASSERT_EQ(got, source.data());
  }
  EXPECT_EQ(AllocationsSoFar(), before);
}

}  // namespace
}  // namespace tryst
