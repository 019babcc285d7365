#include "rendezvous/selection.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tryst {
namespace {

// A selection and, simply said, the same spans.
struct Drawn {
  std::vector<uint32_t> indices;
  std::vector<ByteRun> runs;
  std::vector<ByteSpan> spans;
  Selection selection;
  std::vector<ByteSpan> simple;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const ByteSpan& span : simple) sum += span.bytes;
    return sum;
  }
  bool Overlaps(uint64_t tensor_bytes) const {
    std::vector<bool> seen(tensor_bytes);
    for (const ByteSpan& span : simple) {
      for (uint64_t i = span.offset; i < span.offset + span.bytes; ++i) {
        if (seen[i]) return true;
        seen[i] = true;
      }
    }
    return false;
  }
};

class Drawer {
 public:
  explicit Drawer(uint32_t seed) : random_(seed) {}
  uint64_t Below(uint64_t end) { return random_() % end; }

  Drawn Draw(uint64_t tensor_bytes) {
    Drawn drawn;
    switch (Below(4)) {
      case 0:
        drawn.simple = {{0, tensor_bytes}};
        break;
      case 1:
        DrawIndices(tensor_bytes, &drawn);
        break;
      case 2:
        DrawRuns(tensor_bytes, &drawn);
        break;
      default:
        DrawSpans(tensor_bytes, &drawn);
    }
    return drawn;
  }

 private:
  void DrawIndices(uint64_t tensor_bytes, Drawn* drawn) {
    const uint64_t unit = 1 + Below(Below(2) ? 80 : 8);
    const uint64_t blocks = tensor_bytes / unit;
    std::vector<uint32_t> all(blocks);
    std::iota(all.begin(), all.end(), 0);
    if (Below(3) != 0) std::shuffle(all.begin(), all.end(), random_);
    all.resize(Below(blocks + 1));
    if (Below(4) == 0 && !all.empty()) all.push_back(all[Below(all.size())]);
    for (const uint32_t index : all) drawn->simple.push_back({index * unit, unit});
    drawn->indices = std::move(all);
    drawn->selection = Selection::Indices(drawn->indices, unit);
  }
  void DrawRuns(uint64_t tensor_bytes, Drawn* drawn) {
    for (uint64_t i = Below(6); i > 0; --i) {
      ByteRun run;
      run.offset = Below(tensor_bytes);
      run.bytes = Below(40);
      run.stride = run.bytes + (Below(3) == 0 ? 0 : Below(40));
      const uint64_t room = tensor_bytes - run.offset;
      if (run.bytes > room) run.bytes = room;
      const uint64_t most = run.stride == 0 ? 5 : (room - run.bytes) / run.stride + 1;
      run.count = Below(most + 1);
      drawn->runs.push_back(run);
      for (uint64_t k = 0; k < run.count; ++k) {
        drawn->simple.push_back({run.offset + k * run.stride, run.bytes});
      }
    }
    drawn->selection = Selection::Runs(drawn->runs);
  }
  void DrawSpans(uint64_t tensor_bytes, Drawn* drawn) {
    std::vector<uint64_t> cuts = {0, tensor_bytes};
    const uint64_t grain = 1 + Below(16);
    for (uint64_t i = Below(40); i > 0; --i) cuts.push_back(Below(tensor_bytes) / grain * grain);
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 1; i < cuts.size(); ++i) {
      if (Below(3) != 0) drawn->spans.push_back({cuts[i - 1], cuts[i] - cuts[i - 1]});
    }
    if (Below(3) != 0) std::shuffle(drawn->spans.begin(), drawn->spans.end(), random_);
    if (Below(4) == 0 && !drawn->spans.empty()) {
      ByteSpan& one = drawn->spans[Below(drawn->spans.size())];
      if (one.offset > 0) --one.offset;
    }
    drawn->simple = drawn->spans;
    drawn->selection = Selection::Spans(drawn->spans);
  }

  std::mt19937 random_;
};

std::string Pattern(uint64_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string pattern(bytes, '\0');
  for (char& c : pattern) c = static_cast<char>(random());
  return pattern;
}

TEST(SelectionTest, CopiesWhatASimpleOneCopies) {
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Drawer drawer(seed);
    const uint64_t tensor_bytes = 1 + drawer.Below(3000);
    const Drawn drawn = drawer.Draw(tensor_bytes);
    const auto read = CheckSelection(drawn.selection, tensor_bytes, SelectionUse::kRead);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, drawn.bytes());
    const auto write = CheckSelection(drawn.selection, tensor_bytes, SelectionUse::kWrite);
    ASSERT_EQ(write.ok(), !drawn.Overlaps(tensor_bytes)) << write.status();

    const OwnSelection own(drawn.selection);
    const std::string tensor = Pattern(tensor_bytes, seed);
    std::string expected;
    for (const ByteSpan& span : drawn.simple) expected += tensor.substr(span.offset, span.bytes);
    std::string dense(*read, '?');
    SelectionPlace place;
    for (uint64_t at = 0; at < *read;) {
      const uint64_t bytes = std::min(*read - at, 1 + drawer.Below(500));
      Gather(own.view(), tensor.data(), &dense[at], bytes, &place);
      at += bytes;
    }
    ASSERT_EQ(dense, expected);
    const uint64_t skipped = drawer.Below(*read + 1);
    place = SelectionPlace();
    SkipBytes(own.view(), skipped, &place);
    std::string rest(*read - skipped, '?');
    Gather(own.view(), tensor.data(), &rest[0], rest.size(), &place);
    ASSERT_EQ(rest, expected.substr(skipped));

    if (!write.ok()) continue;
    const std::string news = Pattern(*read, seed + 1);
    std::string simply = tensor;
    uint64_t from = 0;
    for (const ByteSpan& span : drawn.simple) {
      simply.replace(span.offset, span.bytes, news, from, span.bytes);
      from += span.bytes;
    }
    std::string filled = tensor;
    place = SelectionPlace();
    for (uint64_t at = 0; at < *read;) {
      const uint64_t bytes = std::min(*read - at, 1 + drawer.Below(500));
      Scatter(own.view(), &news[at], &filled[0], bytes, &place);
      at += bytes;
    }
    ASSERT_EQ(filled, simply);
  }
}

TEST(SelectionTest, GoesThroughItsSpansWithNeighboursJoined) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Drawer drawer(seed);
    const uint64_t tensor_bytes = 1 + drawer.Below(3000);
    const Drawn drawn = drawer.Draw(tensor_bytes);
    const std::string tensor = Pattern(tensor_bytes, seed);
    std::string expected, got;
    for (const ByteSpan& span : drawn.simple) expected += tensor.substr(span.offset, span.bytes);
    const uint64_t most = 1 + drawer.Below(200);
    SelectionPlace place;
    ByteSpan before;
    while (got.size() < expected.size()) {
      const ByteSpan span =
          NextSpan(drawn.selection, std::min(most, expected.size() - got.size()), &place);
      ASSERT_GT(span.bytes, 0u);
      ASSERT_LE(span.bytes, most);
      // It is cut where it has reached `most`, and nowhere else.
      ASSERT_TRUE(before.bytes == 0 || before.bytes == most ||
                  before.offset + before.bytes != span.offset);
      got += tensor.substr(span.offset, span.bytes);
      before = span;
    }
    ASSERT_EQ(got, expected);
    if (drawn.selection.kind != Selection::Kind::kWhole) {
      EXPECT_EQ(NextSpan(drawn.selection, most, &place).bytes, 0u);
    }
  }
}

TEST(SelectionTest, CommonBitsAreOfAllOffsetsAndSizes) {
  const std::vector<uint32_t> blocks = {2, 6};
  EXPECT_EQ(CommonBits(Selection::Indices(blocks, 48)), 4);
  const std::vector<ByteSpan> spans = {{64, 32}, {8, 0}};
  EXPECT_EQ(CommonBits(Selection::Spans(spans)), 5);
  EXPECT_EQ(CommonBits(Selection::Spans({})), 0);
}

void Refused(const Selection& selection, uint64_t tensor_bytes, const char* because,
             SelectionUse use = SelectionUse::kRead) {
  const auto checked = CheckSelection(selection, tensor_bytes, use);
  ASSERT_TRUE(absl::IsInvalidArgument(checked.status())) << because << ": " << checked.status();
  EXPECT_NE(checked.status().message().find(because), absl::string_view::npos) << checked.status();
}

TEST(SelectionTest, WhatLiesOutsideIsNamed) {
  const std::vector<uint32_t> blocks = {0, 3, 4};
  Refused(Selection::Indices(blocks, 16), 79, "block 4 (number 2, of 16 bytes)");
  Refused(Selection::Indices(blocks, 0), 80, "0 bytes");
  EXPECT_EQ(*CheckSelection(Selection::Indices(blocks, 16), 80, SelectionUse::kWrite), 48u);
  const std::vector<uint32_t> last = {UINT32_MAX};
  Refused(Selection::Indices(last, UINT64_MAX), 80, "block 4294967295");
  Refused(Selection::Indices(last, uint64_t{1} << 33), 80, "block 4294967295");

  for (const ByteSpan span :
       {ByteSpan{81, 0}, ByteSpan{80, 1}, ByteSpan{0, 81}, ByteSpan{1, UINT64_MAX},
        ByteSpan{UINT64_MAX, 2}, ByteSpan{UINT64_MAX, UINT64_MAX}}) {
    const std::vector<ByteSpan> spans = {{0, 80}, span};
    Refused(Selection::Spans(spans), 80, "span 1 (");
  }
  for (const ByteRun run :
       {ByteRun{0, 8, 10, 9}, ByteRun{81, 1, 1, 1}, ByteRun{8, 1, uint64_t{1} << 63, 3},
        ByteRun{8, 1, UINT64_MAX - 7, 2}, ByteRun{0, UINT64_MAX, 0, 2},
        ByteRun{UINT64_MAX, 1, 1, 1}, ByteRun{0, 1, 1, UINT64_MAX}}) {
    const std::vector<ByteRun> runs = {{0, 1, 1, 80}, run};
    Refused(Selection::Runs(runs), 80, "run 1 (");
  }
}

TEST(SelectionTest, MoreBytesThan64BitsCountAreRefused) {
  const std::vector<ByteRun> runs = {{0, uint64_t{1} << 62, 0, 3}, {0, uint64_t{1} << 62, 0, 1}};
  Refused(Selection::Runs(runs), uint64_t{1} << 62, "64 bits");
  const std::vector<ByteSpan> spans(4, ByteSpan{0, uint64_t{1} << 62});
  Refused(Selection::Spans(spans), uint64_t{1} << 62, "64 bits");
}

TEST(SelectionTest, TooManySpansAreRefusedBeforeTheyAreLookedAt) {
  const std::vector<ByteRun> runs = {{0, 1, 2, uint64_t{1} << 40}};
  Refused(Selection::Runs(runs), uint64_t{1} << 42, "more than 16777216 spans");
  const std::vector<uint32_t> indices(Selection::kMaxSpans + 1);
  Refused(Selection::Indices(indices, 1), 1, "more than 16777216 spans");
  // Zeros take no memory until somebody writes to them.
  const std::unique_ptr<ByteSpan, decltype(&free)> zeros(
      static_cast<ByteSpan*>(calloc(Selection::kMaxSpans + 1, sizeof(ByteSpan))), &free);
  const absl::Span<const ByteSpan> spans(zeros.get(), Selection::kMaxSpans + 1);
  Refused(Selection::Spans(spans), 1, "more than 16777216 spans");
  // So many are taken.
  const auto most = absl::MakeConstSpan(indices).subspan(1);
  EXPECT_TRUE(CheckSelection(Selection::Indices(most, 1), 1, SelectionUse::kRead).ok());
  EXPECT_TRUE(CheckSelection(Selection::Spans(spans.subspan(1)), 1, SelectionUse::kRead).ok());
  // A run without gaps is one span.
  const std::vector<ByteRun> one = {{0, 1, 1, uint64_t{1} << 40}};
  EXPECT_EQ(*CheckSelection(Selection::Runs(one), uint64_t{1} << 40, SelectionUse::kWrite),
            uint64_t{1} << 40);
}

TEST(SelectionTest, ManySpansThatOverlapAreFound) {
#ifdef NDEBUG
  constexpr uint64_t kCount = 10'000'000;
#else
  constexpr uint64_t kCount = 1'000'000;
#endif
  std::vector<ByteSpan> spans(kCount);
  std::mt19937 random(1);
  // Far apart and on no common boundary, so that they are sorted; and then close together.
  for (const uint64_t apart : {uint64_t{1} << 14, uint64_t{64}}) {
    for (uint64_t i = 0; i < kCount; ++i) spans[i] = {(kCount - 1 - i) * apart, apart};
    std::swap(spans[7], spans[kCount / 2]);
    if (apart > 64) spans[0].bytes -= 1;
    EXPECT_TRUE(CheckSelection(Selection::Spans(spans), kCount * apart, SelectionUse::kWrite).ok());
    spans[kCount - 5].bytes += 1;
    Refused(Selection::Spans(spans), kCount * apart + 1, "has bytes twice", SelectionUse::kWrite);
  }
  const std::vector<uint32_t> indices(kCount, 5);
  Refused(Selection::Indices(indices, 4096), 1 << 20, "[20480, 24576)", SelectionUse::kWrite);
  EXPECT_TRUE(CheckSelection(Selection::Indices(indices, 4096), 1 << 20, SelectionUse::kRead).ok());
}

}  // namespace
}  // namespace tryst
