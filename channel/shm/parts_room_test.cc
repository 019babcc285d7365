#include "channel/shm/parts_room.h"

#include <deque>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "channel/arena/arena.h"
#include "channel/arena/shared_memory.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

constexpr uint64_t kPage = PartsRoom::kGranule;

class PartsRoomTest : public ::testing::Test {
 protected:
  PartsRoomTest() {
    shm_wire::LinkSizes sizes;
    sizes.references = 64;
    auto memory =
        SharedMemory::Create(shm_wire::LinkBytes(sizes), SharedMemory::Writers::kEverybody);
    view_ = shm_wire::LinkView((*memory)->data(), sizes);
    given_ = std::make_unique<GivenReferences>(nullptr, *std::move(memory), sizes);
    ArenaOptions options;
    options.cap_bytes = 1 << 20;
    block_ = *Arena::Make(options)->Allocate(1);
  }
  struct Part {
    uint64_t offset;
    uint64_t bytes;
    uint16_t reference;
    uint16_t generation;
  };
  bool Put(PartsRoom* room, uint64_t bytes) {
    const uint64_t offset = room->Find(bytes, *given_);
    if (offset == PartsRoom::kNone) return false;
    Part part{offset, bytes, 0, 0};
    given_->GivePart(block_, &part.reference, &part.generation);
    room->Gave(offset, bytes, part.reference, part.generation);
    parts_.push_back(part);
    return true;
  }
  // Returns a part as the consumer does.
  void Return(size_t i) {
    const Part part = parts_[i];
    parts_.erase(parts_.begin() + static_cast<ptrdiff_t>(i));
    view_.releases[returned_ % 64].store((returned_ + 1) << 32 | uint64_t{part.generation} << 16 |
                                         part.reference);
    ++returned_;
    EXPECT_EQ(*given_->TakeReturned(), 1);
  }

  shm_wire::LinkView view_;
  std::unique_ptr<GivenReferences> given_;
  StorageRef block_;
  uint64_t returned_ = 0;
  std::deque<Part> parts_;
};

TEST_F(PartsRoomTest, GoesAroundRatherThanToWhatWasJustRead) {
  PartsRoom room(4 * kPage);
  for (uint64_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(Put(&room, kPage));
    EXPECT_EQ(parts_.back().offset, i % 4 * kPage);
    Return(0);
  }
}

TEST_F(PartsRoomTest, IsFullUntilTheOldestIsReturned) {
  PartsRoom room(4 * kPage);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put(&room, 1));
  EXPECT_FALSE(Put(&room, 1));
  Return(2);
  EXPECT_FALSE(Put(&room, 1));
  Return(0);
  ASSERT_TRUE(Put(&room, kPage));
  EXPECT_EQ(parts_.back().offset, 0u);
  EXPECT_FALSE(Put(&room, 1));
}

TEST_F(PartsRoomTest, TheRoomBeforeTheOldestIsFilled) {
  PartsRoom room(4 * kPage);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Put(&room, 2 * kPage));
  Return(0);
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Put(&room, kPage));
    EXPECT_EQ(parts_.back().offset, i * kPage);
  }
  EXPECT_FALSE(Put(&room, kPage));
}

TEST_F(PartsRoomTest, APartDoesNotLieAroundTheEnd) {
  PartsRoom room(4 * kPage);
  ASSERT_TRUE(Put(&room, 3 * kPage));
  EXPECT_FALSE(Put(&room, 2 * kPage));
  Return(0);
  ASSERT_TRUE(Put(&room, 2 * kPage));
  EXPECT_EQ(parts_.back().offset, 0u);
  EXPECT_FALSE(Put(&room, 5 * kPage)) << "larger than all";
}

TEST_F(PartsRoomTest, NoTwoPartsOverlap) {
  PartsRoom room(32 * kPage);
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !parts_.empty()) {
      // Nearly always the oldest.
      Return(random() % 8 == 0 ? random() % parts_.size() : 0);
      continue;
    }
    if (parts_.size() == 60 || !Put(&room, 1 + random() % (6 * kPage))) continue;
    const Part& newest = parts_.back();
    ASSERT_LE(newest.offset + newest.bytes, 32 * kPage);
    for (size_t j = 0; j + 1 < parts_.size(); ++j) {
      const Part& other = parts_[j];
      ASSERT_TRUE(newest.offset + newest.bytes <= other.offset ||
                  other.offset + other.bytes <= newest.offset);
    }
  }
}

// Every order in which parts of three sizes are given and returned in a room of four pages. No two
// parts may overlap. If Find() fails, the room must be full, or the free pages must not be next to
// each other at the right place.
TEST_F(PartsRoomTest, EveryOrder) {
  constexpr int kSteps = 7;
  constexpr uint64_t kPages = 4;
  uint64_t orders = 0;
  uint64_t refused = 0;
  // A step is the size of a part to be given, 1 to 3 pages, or the part to be returned.
  const std::function<void(std::vector<int>)> explore = [&](std::vector<int> steps) {
    PartsRoom room(kPages * kPage);
    while (!parts_.empty()) Return(0);
    for (const int step : steps) {
      if (step > 3) {
        Return(static_cast<size_t>(step - 4));
        continue;
      }
      if (Put(&room, static_cast<uint64_t>(step) * kPage)) {
        const Part& put = parts_.back();
        ASSERT_LE(put.offset + put.bytes, kPages * kPage);
        for (size_t i = 0; i + 1 < parts_.size(); ++i) {
          ASSERT_TRUE(put.offset + put.bytes <= parts_[i].offset ||
                      parts_[i].offset + parts_[i].bytes <= put.offset)
              << "two parts lie in one place";
        }
      } else {
        ++refused;
        ASSERT_FALSE(parts_.empty()) << "an empty room has no room";
      }
    }
    ++orders;
    if (steps.size() == kSteps) return;
    const size_t there = parts_.size();
    for (int step = 1; step < static_cast<int>(4 + there); ++step) {
      std::vector<int> more = steps;
      more.push_back(step);
      explore(std::move(more));
      if (HasFatalFailure()) return;
    }
  };
  explore({});
  EXPECT_GT(orders, 10'000u);
  EXPECT_GT(refused, 1'000u);
}

}  // namespace
}  // namespace tryst
