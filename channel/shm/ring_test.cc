#include "channel/shm/ring.h"

#include <cstdint>
#include <cstring>
#include <memory>
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

// A cell whose number is in its first line, and at its end if it is long.
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

// Of a hostile reader's count only what is possible is believed.
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

// A hostile writer's cell is read once: what it changes behind that does not show.
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
