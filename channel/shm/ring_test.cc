#include "channel/shm/ring.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uint32_t kCells = 16;
constexpr size_t kCell = 128;
constexpr size_t kLongAt = 16;

struct alignas(128) Memory {
  uint8_t cells[kCells * kCell] = {};
  std::atomic<uint32_t> read{0};
};

// Writes a cell with its number in the first line, and at its end if it is long.
void Write(RingWriter<kCell>* writer, uint32_t number, bool is_long) {
  uint8_t* cell = writer->cell();
  memcpy(cell + 4, &number, sizeof(number));
  cell[kLongAt] = is_long ? 1 : 0;
  if (is_long) memcpy(cell + kCell - 4, &number, sizeof(number));
  writer->Publish();
}

void Expect(RingReader<kCell>* reader, uint32_t number, bool is_long) {
  uint8_t cell[kCell] = {};
  reader->Take(cell, kLongAt);
  uint32_t seen;
  memcpy(&seen, cell + 4, sizeof(seen));
  ASSERT_EQ(seen, number);
  if (!is_long) return;
  memcpy(&seen, cell + kCell - 4, sizeof(seen));
  ASSERT_EQ(seen, number);
}

TEST(RingTest, GivesBackWhatWasPutInManyRoundsLong) {
  Memory memory;
  RingWriter<kCell> writer(memory.cells, kCells, &memory.read);
  RingReader<kCell> reader(memory.cells, kCells, &memory.read);
  uint32_t written = 0;
  uint32_t taken = 0;
  for (int round = 0; round < 1000; ++round) {
    while (writer.HasRoom(1)) {
      Write(&writer, written, written % 3 == 0);
      ++written;
    }
    ASSERT_LE(written - taken, kCells);
    while (reader.Ready()) {
      Expect(&reader, taken, taken % 3 == 0);
      ++taken;
    }
    ASSERT_EQ(taken, written);
  }
  EXPECT_EQ(writer.written(), written);
  EXPECT_EQ(reader.taken(), taken);
}

TEST(RingTest, AFullRingHasNoRoomUntilItsReaderSaysSo) {
  Memory memory;
  RingWriter<kCell> writer(memory.cells, kCells, &memory.read);
  RingReader<kCell> reader(memory.cells, kCells, &memory.read);
  for (uint32_t i = 0; i < kCells; ++i) {
    ASSERT_TRUE(writer.HasRoom(1));
    Write(&writer, i, false);
  }
  EXPECT_FALSE(writer.HasRoom(1));
  Expect(&reader, 0, false);
  EXPECT_FALSE(writer.HasRoom(1)) << "the reader tells of several at once";
  Expect(&reader, 1, false);
  EXPECT_TRUE(writer.HasRoom(2));
  EXPECT_FALSE(writer.HasRoom(3));
}

// A hostile reader's count is believed only if it is possible.
TEST(RingTest, AReaderThatHasReadTooMuchGetsNoRoom) {
  Memory memory;
  RingWriter<kCell> writer(memory.cells, kCells, &memory.read);
  for (uint32_t i = 0; i < kCells; ++i) Write(&writer, i, false);
  for (uint32_t nonsense : {kCells + 1, kCells + 100, 0x80000000u, 0xffffffffu - kCells}) {
    memory.read.store(nonsense);
    EXPECT_FALSE(writer.HasRoom(1)) << nonsense;
  }
  memory.read.store(kCells);
  EXPECT_TRUE(writer.HasRoom(kCells));
}

// A hostile writer's cell is read once; later changes have no effect.
TEST(RingTest, ACellIsACopy) {
  Memory memory;
  RingWriter<kCell> writer(memory.cells, kCells, &memory.read);
  RingReader<kCell> reader(memory.cells, kCells, &memory.read);
  Write(&writer, 7, true);
  uint8_t cell[kCell];
  reader.Take(cell, kLongAt);
  memset(memory.cells, 0xff, sizeof(memory.cells));
  uint32_t seen;
  memcpy(&seen, cell + 4, sizeof(seen));
  EXPECT_EQ(seen, 7u);
}

// Every order in which the two ends of a small ring can take their steps, with the templates that
// ship. A step is a load, the filling of a cell, a publish, or a take.
class RingOrders {
 public:
  static constexpr uint32_t kFew = 4;
  static constexpr uint32_t kMost = 11;  // Nearly three times around.

  struct World {
    Memory memory;
    RingWriter<kCell> writer;
    RingReader<kCell> reader;
    uint32_t written = 0;
    uint32_t taken = 0;
    bool has_room = false;  // The writer has checked.
    bool filled = false;
    bool ready = false;  // The reader has checked.
  };
  // The copy's rings use the copy's memory.
  static std::unique_ptr<World> Copy(const World& from) {
    auto to = std::make_unique<World>();
    memcpy(to->memory.cells, from.memory.cells, sizeof(from.memory.cells));
    to->memory.read.store(from.memory.read.load());
    Rebase(from.writer, from.memory, to->memory, &to->writer);
    Rebase(from.reader, from.memory, to->memory, &to->reader);
    to->written = from.written;
    to->taken = from.taken;
    to->has_room = from.has_room;
    to->filled = from.filled;
    to->ready = from.ready;
    return to;
  }
  uint64_t orders() const { return orders_; }
  uint64_t full() const { return full_; }

  void Explore(const World& world) {
    if (::testing::Test::HasFatalFailure()) return;
    if (world.taken == kMost) {
      ++orders_;
      return;
    }
    bool moved = false;
    for (const auto step : {&RingOrders::Look, &RingOrders::Fill, &RingOrders::Publish,
                            &RingOrders::LookForOne, &RingOrders::Take}) {
      auto next = Copy(world);
      if (!(this->*step)(next.get())) continue;
      moved = true;
      if (seen_.insert(IdOf(*next)).second) Explore(*next);
    }
    ASSERT_TRUE(moved) << "both ends wait: " << world.written << " written, " << world.taken;
  }

 private:
  template <typename Ring>
  static void Rebase(const Ring& from, const Memory& old, const Memory& memory, Ring* to) {
    // Their pointers into the memory must be moved, too.
    memcpy(static_cast<void*>(to), &from, sizeof(from));
    uintptr_t words[sizeof(Ring) / sizeof(uintptr_t)];
    memcpy(words, &from, sizeof(words));
    for (uintptr_t& word : words) {
      const auto begin = reinterpret_cast<uintptr_t>(&old);
      if (word < begin || word >= begin + sizeof(old)) continue;
      word += reinterpret_cast<uintptr_t>(&memory) - begin;
    }
    memcpy(static_cast<void*>(to), words, sizeof(words));
  }
  static std::string IdOf(const World& world) {
    std::string id(reinterpret_cast<const char*>(world.memory.cells), kFew * kCell);
    for (uint32_t value : {world.memory.read.load(), world.written, world.taken,
                           uint32_t{world.has_room}, uint32_t{world.filled}, uint32_t{world.ready},
                           world.writer.written(), world.reader.taken()}) {
      id += std::to_string(value) + ",";
    }
    return id;
  }

  bool Look(World* world) {
    if (world->has_room || world->written == kMost) return false;
    world->has_room = world->writer.HasRoom(1);
    if (!world->has_room) {
      ++full_;
      EXPECT_GT(world->written - world->taken, kFew - 2) << "no room, and the ring is not full";
    }
    return world->has_room;
  }
  bool Fill(World* world) {
    if (!world->has_room || world->filled) return false;
    EXPECT_LT(world->written - world->taken, kFew) << "a cell is filled that is not read yet";
    uint8_t* cell = world->writer.cell();
    memcpy(cell + 4, &world->written, sizeof(world->written));
    const bool is_long = world->written % 3 == 0;
    cell[kLongAt] = is_long ? 1 : 0;
    if (is_long) memcpy(cell + kCell - 4, &world->written, sizeof(world->written));
    return world->filled = true;
  }
  bool Publish(World* world) {
    if (!world->filled) return false;
    world->writer.Publish();
    ++world->written;
    world->has_room = world->filled = false;
    return true;
  }
  bool LookForOne(World* world) {
    if (world->ready) return false;
    EXPECT_EQ(world->reader.Ready(), world->taken < world->written);
    return world->ready = world->reader.Ready();
  }
  bool Take(World* world) {
    if (!world->ready) return false;
    Expect(&world->reader, world->taken, world->taken % 3 == 0);
    ++world->taken;
    world->ready = false;
    return true;
  }

  std::set<std::string> seen_;
  uint64_t orders_ = 0;
  uint64_t full_ = 0;
};

TEST(RingTest, EveryOrderOfTwoEnds) {
  auto world = std::make_unique<RingOrders::World>();
  world->writer = RingWriter<kCell>(world->memory.cells, RingOrders::kFew, &world->memory.read);
  world->reader = RingReader<kCell>(world->memory.cells, RingOrders::kFew, &world->memory.read);
  RingOrders orders;
  orders.Explore(*world);
  EXPECT_GT(orders.orders(), 0u);
  EXPECT_GT(orders.full(), 0u);
}

TEST(RingTest, TwoThreads) {
  auto memory = std::make_unique<Memory>();
  constexpr uint32_t kCount = 20'000;
  std::thread producer([&memory] {
    RingWriter<kCell> writer(memory->cells, kCells, &memory->read);
    for (uint32_t i = 0; i < kCount; ++i) {
      while (!writer.HasRoom(1)) std::this_thread::yield();
      Write(&writer, i, i % 5 == 0);
    }
  });
  RingReader<kCell> reader(memory->cells, kCells, &memory->read);
  for (uint32_t i = 0; i < kCount; ++i) {
    while (!reader.Ready()) std::this_thread::yield();
    Expect(&reader, i, i % 5 == 0);
    if (HasFatalFailure()) break;
  }
  producer.join();
}

}  // namespace
}  // namespace tryst
