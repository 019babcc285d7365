#include "rendezvous/span_digests.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "base/crc32c.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

std::string Random(size_t bytes) {
  std::mt19937 random(7);
  std::string made(bytes, 0);
  for (char& c : made) c = static_cast<char>(random());
  return made;
}

struct SpanDigestsTest : testing::Test {
  std::string Digested(const Selection& selection, uint64_t bytes, uint64_t granule) {
    std::string dense(bytes + TrailerBytes(bytes, granule), 0x11);
    GatherDigested(selection, tensor.data(), dense.data(), bytes, granule);
    return dense;
  }

  static std::string WithTrailer(const std::string& bytes, uint64_t granule) {
    std::string all(bytes.size() + TrailerBytes(bytes.size(), granule), 0);
    GatherDigested(Selection(), bytes.data(), all.data(), bytes.size(), granule);
    return all;
  }

  const std::string tensor = Random(1 << 20);
};

TEST_F(SpanDigestsTest, WhatIsGatheredIsTheSameAndRight) {
  std::vector<uint32_t> blocks(200);
  std::iota(blocks.begin(), blocks.end(), 3);
  std::reverse(blocks.begin(), blocks.end());
  const Selection selection = Selection::Indices(blocks, 1000);
  for (const uint64_t granule : {64, 1000, 1024, 70'000, 1 << 20}) {
    const std::string dense = Digested(selection, 200'000, granule);
    std::string plain(200'000, 0);
    SelectionPlace place;
    Gather(selection, tensor.data(), plain.data(), plain.size(), &place);
    EXPECT_EQ(dense.substr(0, 200'000), plain);
    ASSERT_TRUE(HasTrailer(dense.data(), dense.size(), 200'000)) << granule;
    EXPECT_TRUE(FindWrong(dense.data(), dense.size(), 200'000).empty()) << granule;
  }
}

TEST_F(SpanDigestsTest, NoBytesHaveATrailerToo) {
  const std::string dense = Digested(Selection::Indices({}, 8), 0, 64);
  EXPECT_TRUE(HasTrailer(dense.data(), dense.size(), 0));
  EXPECT_TRUE(FindWrong(dense.data(), dense.size(), 0).empty());
}

TEST_F(SpanDigestsTest, EveryFlippedBitIsFoundWhereItIs) {
  const std::string right = Digested(Selection(), 1000, 300);
  for (size_t at = 0; at < right.size(); ++at) {
    std::string wrong = right;
    wrong[at] = static_cast<char>(wrong[at] ^ 0x10);
    if (!HasTrailer(wrong.data(), wrong.size(), 1000)) {
      EXPECT_GE(at, right.size() - 8) << "it says what is where";
      continue;
    }
    const auto found = FindWrong(wrong.data(), wrong.size(), 1000);
    ASSERT_EQ(found.size(), 1u) << at;
    if (at >= 1000) {
      EXPECT_EQ(found[0], (ByteSpan{0, 1000})) << "the trailer is wrong: " << at;
    } else {
      EXPECT_EQ(found[0], (ByteSpan{at / 300 * 300, at < 900 ? 300u : 100u})) << at;
    }
  }
}

TEST_F(SpanDigestsTest, NeighboursThatAreWrongAreOnePart) {
  std::string dense = Digested(Selection(), 1000, 100);
  for (const size_t at : {150, 250, 390, 800}) dense[at] ^= 1;
  const auto found = FindWrong(dense.data(), dense.size(), 1000);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], (ByteSpan{100, 300}));
  EXPECT_EQ(found[1], (ByteSpan{800, 100}));
}

TEST_F(SpanDigestsTest, OtherBytesAreNoTrailer) {
  const std::string dense = Digested(Selection(), 1000, 100);
  EXPECT_FALSE(HasTrailer(dense.data(), dense.size(), 999));
  EXPECT_FALSE(HasTrailer(dense.data(), dense.size(), 1001));
  EXPECT_FALSE(HasTrailer(dense.data(), dense.size() - 1, 1000));
  EXPECT_FALSE(HasTrailer(dense.data(), 1000, 1000));
  EXPECT_FALSE(HasTrailer(dense.data(), 0, 1000));
  EXPECT_FALSE(HasTrailer(tensor.data(), 1100, 1000));
}

// Where the sender can still write what it has sent, it may do so after the trailer was looked at.
TEST_F(SpanDigestsTest, AGranuleThatChangesMakesNobodyReadBehindTheTrailer) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<uint8_t*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(memory + page, page, PROT_NONE), 0);
  constexpr uint64_t kBytes = 1024;
  constexpr uint64_t kGranule = 256;
  const std::string all = Digested(Selection(), kBytes, kGranule);
  uint8_t* const at = memory + page - all.size();
  for (const uint32_t granule : {0u, 1u, 64u, 128u, 1u << 20, UINT32_MAX}) {
    memcpy(at, all.data(), all.size());
    ASSERT_TRUE(HasTrailer(at, all.size(), kBytes));
    uint8_t* const tail = at + all.size() - 8;
    memcpy(tail, &granule, sizeof(granule));
    const uint32_t right = Crc32c(0, at + kBytes, all.size() - kBytes - 4);
    memcpy(tail + 4, &right, sizeof(right));
    const std::vector<ByteSpan> wrong = FindWrong(at, all.size(), kBytes);
    ASSERT_EQ(wrong.size(), 1u) << granule;
    EXPECT_EQ(wrong[0].offset, 0u);
    EXPECT_EQ(wrong[0].bytes, kBytes);
    std::vector<uint32_t> numbers(kBytes / 64);
    std::iota(numbers.begin(), numbers.end(), 0);
    const Selection selection = Selection::Indices(numbers, 64);
    std::vector<uint32_t> digests(numbers.size()), cut;
    DigestSpans(selection, kBytes, SelectionPlace(), at, all.size(), kBytes, digests.data(), &cut);
    for (const uint32_t number : numbers) {
      EXPECT_EQ(digests[number], Crc32c(0, all.data() + number * 64, 64)) << granule;
    }
  }
  munmap(memory, 2 * page);
}

TEST_F(SpanDigestsTest, AGranuleFitsTheSpans) {
  const std::vector<uint32_t> blocks = {1, 2};
  EXPECT_EQ(GranuleFor(Selection::Indices(blocks, 4096), 8192), 4096u);
  EXPECT_EQ(GranuleFor(Selection::Indices(blocks, 8), 16), kMinGranule);
  EXPECT_EQ(GranuleFor(Selection::Indices(blocks, 1 << 30), uint64_t{2} << 30), kMaxGranule);
  const std::vector<ByteRun> runs = {{0, 100, 200, 3}, {700, 300, 0, 1}};
  EXPECT_EQ(GranuleFor(Selection::Runs(runs), 600), 300u);
  const std::vector<ByteSpan> spans = {{0, 100}, {200, 300}};
  EXPECT_EQ(GranuleFor(Selection::Spans(spans), 400), 200u);
  EXPECT_EQ(GranuleFor(Selection::Spans({}), 0), uint64_t{64} << 10);
}

TEST_F(SpanDigestsTest, SpansAreCountedAsTheyStandInTheList) {
  // Numbers 0 to 2; a run without gaps, 3; one of no bytes; 4.
  const std::vector<ByteRun> runs = {
      {0, 10, 20, 3}, {100, 10, 10, 5}, {7, 0, 0, 9}, {300, 4, 0, 1}};
  std::vector<ByteSpan> seen;
  for (SpanCursor cursor(Selection::Runs(runs), 1000); !cursor.AtEnd(); cursor.Next()) {
    EXPECT_EQ(cursor.number(), seen.size());
    seen.push_back(cursor.span());
  }
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen[2], (ByteSpan{40, 10}));
  EXPECT_EQ(seen[3], (ByteSpan{100, 50}));
  EXPECT_EQ(seen[4], (ByteSpan{300, 4}));

  const std::vector<ByteSpan> parts = {{29, 2}, {80, 1}};
  EXPECT_EQ(SpansIn(Selection::Runs(runs), 1000, parts), (std::vector<uint32_t>{2, 3, 4}));
  const std::vector<ByteSpan> fourth = {{30, 1}};
  EXPECT_EQ(SpansIn(Selection::Runs(runs), 1000, fourth), (std::vector<uint32_t>{3}));
  const std::vector<ByteSpan> spans = {{0, 5}, {5, 0}, {8, 5}};
  const std::vector<ByteSpan> all = {{0, 10}}, last = {{9, 1}}, none = {};
  EXPECT_EQ(SpansIn(Selection::Spans(spans), 20, all), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(SpansIn(Selection::Spans(spans), 20, last), (std::vector<uint32_t>{2}));
  EXPECT_TRUE(SpansIn(Selection::Spans(spans), 20, none).empty());
  EXPECT_EQ(SpansIn(Selection(), 20, last), (std::vector<uint32_t>{0}));
}

// From wherever a part begins, as the asks of a region do.
TEST_F(SpanDigestsTest, PartsHaveTheDigestsOfTheirSpans) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<ByteRun> runs;
    uint64_t end = 0, bytes = 0;
    for (uint64_t i = 0, count = 1 + random() % 6; i < count; ++i) {
      const uint64_t one = random() % 50, gap = random() % 3 == 0 ? 0 : 1 + random() % 9;
      runs.push_back({end, one, one + gap, random() % 5});
      end += runs.back().stride * runs.back().count;
      bytes += one * runs.back().count;
    }
    const Selection selection = Selection::Runs(runs);
    std::string into(end, 0);
    std::vector<uint32_t> digests, whole;
    for (SpanCursor cursor(selection, end); !cursor.AtEnd(); cursor.Next()) {
      whole.push_back(Crc32c(0, tensor.data() + cursor.span().offset, cursor.span().bytes));
    }
    digests.resize(whole.size());
    std::string dense(bytes, 0);
    SelectionPlace place;
    Gather(selection, tensor.data(), dense.data(), bytes, &place);
    place = {};
    std::vector<uint32_t> cut;
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t most = std::min(bytes - at, 1 + random() % 90);
      const std::string part = WithTrailer(dense.substr(at, most), kMinGranule);
      DigestSpans(selection, end, place, part.data(), part.size(), most, digests.data(), &cut);
      std::vector<ByteSpan> except;
      if (random() % 2 == 0) except.push_back({random() % most, 0});
      if (!except.empty()) except[0].bytes = random() % (most - except[0].offset + 1);
      ScatterExcept(selection, dense.data() + at, into.data(), most, except, place);
      SkipBytes(selection, most, &place);
      // What was left out is what it was.
      for (const ByteSpan& part : except) {
        SelectionPlace to_part;
        SkipBytes(selection, at + part.offset, &to_part);
        std::string there(part.bytes, 1);
        Gather(selection, into.data(), there.data(), part.bytes, &to_part);
        EXPECT_EQ(there, std::string(part.bytes, 0));
        to_part = {};
        SkipBytes(selection, at + part.offset, &to_part);
        Scatter(selection, dense.data() + at + part.offset, into.data(), part.bytes, &to_part);
      }
      at += most;
    }
    for (SpanCursor cursor(selection, end); !cursor.AtEnd(); cursor.Next()) {
      const ByteSpan span = cursor.span();
      EXPECT_EQ(memcmp(into.data() + span.offset, tensor.data() + span.offset, span.bytes), 0);
    }
    DigestCut(selection, into.data(), end, cut, digests.data());
    EXPECT_EQ(digests, whole);
  }
}

// Blocks that have a granule each, and blocks that have not.
TEST_F(SpanDigestsTest, BlocksHaveTheDigestsOfTheirGranules) {
  const std::vector<uint32_t> blocks = {4, 2, 9, 7, 1};
  const Selection selection = Selection::Indices(blocks, 100);
  for (const uint64_t granule : {100, 64, 200}) {
    for (const uint64_t begin : {0, 100, 130, 400}) {
      for (const uint64_t bytes : {1, 70, 99, 100, 101, 170, 200, 370}) {
        if (begin + bytes > 500) continue;
        std::string part(bytes, 0);
        SelectionPlace place, gathered;
        SkipBytes(selection, begin, &place);
        gathered = place;
        Gather(selection, tensor.data(), part.data(), bytes, &gathered);
        const std::string all = WithTrailer(part, granule);
        std::vector<uint32_t> digests(5, 0), cut;
        DigestSpans(selection, 1000, place, all.data(), all.size(), bytes, digests.data(), &cut);
        for (uint32_t i = 0; i < 5; ++i) {
          const bool touched = 100 * i < begin + bytes && 100 * (i + 1) > begin;
          const bool whole = 100 * i >= begin && 100 * (i + 1) <= begin + bytes;
          const uint32_t right = Crc32c(0, tensor.data() + blocks[i] * 100, 100);
          EXPECT_EQ(digests[i], whole ? right : 0) << granule << ", " << begin << ", " << bytes;
          EXPECT_EQ(std::count(cut.begin(), cut.end(), i), touched && !whole ? 1 : 0)
              << granule << ", " << begin << ", " << bytes;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tryst
