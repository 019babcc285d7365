// The rows of the budget in docs/COSTS.md for shared memory. Both ends run on this thread, with the
// code that ships.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/arena/arena.h"
#include "gtest/gtest.h"
#include "tests/contract/hop_budget/allocations.h"
#include "tests/contract/hop_budget/counted_pair.h"
#include "tests/process/pair/pool_counters.h"

namespace tryst {
namespace {

struct Row {
  std::string name;
  uint64_t bytes = 0;
  bool shared_source = false;  // It lies in the producer's arena.
  bool into_place = false;
  std::function<void(TransportsOptions*)> adjust;
  double messages = 2;
  int copies_at_producer = 0;
  int copies_at_consumer = 0;
  bool is_view = false;  // The delivered tensor lies in the producer's arena.
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

class ShmHopBudgetTest : public ::testing::TestWithParam<Row> {};

TEST_P(ShmHopBudgetTest, IsKept) {
  const Row& row = GetParam();
  std::shared_ptr<Arena> arena;  // The producer's; it is made first.
  NicTally tally;
  const auto pair = MakeCountedPair(&tally, [&](TransportsOptions* pool) {
    ArenaOptions arena_options;
    arena_options.seed = pool->incarnation << 32;
    pool->shm_arena = Arena::Make(arena_options);
    if (arena == nullptr) arena = pool->shm_arena;
    if (row.adjust) row.adjust(pool);
  });
  const TensorShape shape = *TensorShape::Make({static_cast<int64_t>(row.bytes)});
  Tensor source = row.shared_source ? *arena->AllocateTensor(DType::kUint8, shape)
                                    : *Tensor::Allocate(DType::kUint8, shape);
  RecvArgs args;
  if (row.into_place) args.destination = *Tensor::Allocate(DType::kUint8, shape);
  const TensorKey key = WorkerPair::Key("shm");
  CountedFetch fetch;
  const auto move = [&] {
    ASSERT_TRUE(pair->step()->Send(key, SendArgs(), source, false).ok());
    fetch.Start(pair.get(), 1, key, args);
    TurnUntil(pair.get(), [&fetch] { return fetch.ended; });
  };
  for (int i = 0; i < kWarmUp; ++i) {
    move();
    if (HasFatalFailure()) return;
  }
  const ServeCounters served = ShmServed(*pair->producer());
  const FetchCounters fetched = ShmFetched(*pair->consumer());
  const uint64_t tasks = pair->consumer_tasks();
  const uint64_t allocations = AllocationsSoFar();
  for (int i = 0; i < kCounted; ++i) move();
  const double allocated = static_cast<double>(AllocationsSoFar() - allocations);
  const ServeCounters serves = ShmServed(*pair->producer());
  const FetchCounters fetches = ShmFetched(*pair->consumer());
  const auto each = [](uint64_t count) { return static_cast<double>(count) / kCounted; };
  EXPECT_DOUBLE_EQ(each(serves.messages - served.messages + fetches.messages - fetched.messages),
                   row.messages);
  EXPECT_DOUBLE_EQ(each(serves.in_message - served.in_message + serves.staged - served.staged +
                        serves.in_parts - served.in_parts),
                   row.copies_at_producer);
  EXPECT_DOUBLE_EQ(each(fetches.in_message - fetched.in_message + fetches.copied - fetched.copied +
                        fetches.pulled - fetched.pulled + fetches.in_parts - fetched.in_parts),
                   row.copies_at_consumer);
  // The fetch was made on the poller's thread; on another thread it costs one hand-off.
  EXPECT_EQ(pair->consumer_tasks(), tasks);
  EXPECT_DOUBLE_EQ(allocated / kCounted, 0);
  EXPECT_EQ(fetch.got.space().kind == MemorySpace::Kind::kShared, row.is_view);
  if (row.into_place) {
    EXPECT_EQ(fetch.got.data(), args.destination.data());
  }
  const void* const last = fetch.got.data();
  std::thread other([&] { move(); });
  other.join();
  EXPECT_EQ(pair->consumer_tasks(), tasks + 1);
  EXPECT_TRUE(last != nullptr);
  fetch.got = Tensor();
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const auto add = [&rows](const char* name, uint64_t bytes) {
    Row row;
    row.name = name;
    row.bytes = bytes;
    rows.push_back(std::move(row));
    return &rows.back();
  };
  Row* row = add("SmallInsideTheMessage", 64);
  row->copies_at_producer = row->copies_at_consumer = 1;
  row = add("SmallIntoPlace", 64);
  row->into_place = true;
  row->copies_at_producer = row->copies_at_consumer = 1;
  row = add("ByReference", 100'000);
  row->shared_source = row->is_view = true;
  row = add("ByReferenceIntoPlace", 100'000);
  row->shared_source = row->into_place = true;
  row->copies_at_consumer = 1;
  row = add("OneCopyIntoTheArena", 100'000);
  row->copies_at_producer = 1;
  row->is_view = true;
  // The third message says that the producer may release its memory.
  row = add("OneCopyOutOfTheProducersMemory", 100'000);
  row->into_place = true;
  row->copies_at_consumer = 1;
  row->messages = 3;
  row->adjust = [](TransportsOptions* pool) { pool->shm.parts_bytes = 1 << 20; };
  // One message for each part, of 16 to 64 KiB. Left to itself, a link would try reads, too.
  const auto only_parts = [](TransportsOptions* pool) { pool->shm.allow_pull = false; };
  row = add("TwoCopiesAtOnce", 64 << 10);
  row->adjust = only_parts;
  row->into_place = true;
  row->copies_at_producer = row->copies_at_consumer = 1;
  row->messages = 5;
  row = add("TwoCopiesOfWhatIsShort", 10'000);
  row->into_place = true;
  row->copies_at_producer = row->copies_at_consumer = 1;
  row = add("TwoCopiesByTurnsOfWhatIsLarge", 1 << 20);
  row->adjust = only_parts;
  row->into_place = true;
  row->copies_at_producer = row->copies_at_consumer = 1;
  row->messages = 17;
  row = add("OneCopyWithDigest", 100'000);
  row->copies_at_producer = 1;
  row->is_view = true;
  row->adjust = [](TransportsOptions* pool) { pool->shm.digests = true; };
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Shm, ShmHopBudgetTest, ::testing::ValuesIn(Rows()),
                         [](const auto& info) { return info.param.name; });

// A link finds out by itself whether tensors in the middle go in parts or are read, so it has to do
// both for a while. Whichever it is, each tensor is the one that was sent.
TEST(ShmMiddleSizesTest, GoBothWaysUntilTheFasterOneIsKnown) {
  for (const int64_t bytes : {32 << 10, 100 << 10, 700 << 10, 3 << 20}) {
    NicTally tally;
    const auto pair = MakeCountedPair(&tally, [](TransportsOptions* pool) {
      ArenaOptions arena_options;
      arena_options.seed = pool->incarnation << 32;
      pool->shm_arena = Arena::Make(arena_options);
    });
    const TensorShape shape = *TensorShape::Make({bytes});
    RecvArgs args;
    args.destination = *Tensor::Allocate(DType::kUint8, shape);
    const TensorKey key = WorkerPair::Key("shm");
    CountedFetch fetch;
    for (int64_t moved = 0; moved < 3 * (32 << 20); moved += bytes) {
      const int fill = static_cast<int>(moved / bytes % 251);
      Tensor source = *Tensor::Allocate(DType::kUint8, shape);
      memset(source.mutable_data(), fill, static_cast<size_t>(bytes));
      ASSERT_TRUE(pair->step()->Send(key, SendArgs(), std::move(source), false).ok());
      fetch.Start(pair.get(), 1, key, args);
      TurnUntil(pair.get(), [&fetch] { return fetch.ended; });
      const uint8_t* const got = fetch.got.data_as<uint8_t>();
      ASSERT_EQ(got, args.destination.data());
      ASSERT_TRUE(got[0] == fill && memcmp(got, got + 1, static_cast<size_t>(bytes - 1)) == 0);
    }
    const FetchCounters fetches = ShmFetched(*pair->consumer());
    EXPECT_GT(fetches.in_parts, 0u) << bytes;
    EXPECT_GT(fetches.pulled, 0u) << bytes;
    EXPECT_EQ(fetches.ended_failed, 0u);
  }
}

}  // namespace
}  // namespace tryst
