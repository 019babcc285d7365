// What the copies of selections cost one core: ns a span, of blocks that lie anywhere in a pool.
//
//   kv_bench [--quick] [--rounds N] [--only SIZE] [--json FILE]
//
// "gather" and "scatter" copy, "check" is what a destination's list takes; "digests" are what more
// a gather takes that makes them, and what it takes to look at them. The pool is far larger than
// the caches, and so are its pages together than what the processor knows of them.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "bench/flags.h"
#include "rendezvous/selection.h"
#include "rendezvous/span_digests.h"
#include "rendezvous/tensor.h"

namespace tryst {
namespace {

constexpr size_t kSpans = 1000;

struct Took {
  std::vector<double> gather, digested, verify, check, scatter;
};

double Median(std::vector<double>* values) {
  std::sort(values->begin(), values->end());
  return (*values)[values->size() / 2];
}

Tensor Memory(uint64_t bytes) {
  const Tensor tensor =
      *Tensor::Allocate(DType::kUint8, TensorShape({static_cast<int64_t>(bytes)}));
  memset(tensor.mutable_data(), 1, bytes);
  return tensor;
}

Took Measure(uint64_t unit, uint64_t pool_bytes, int rounds) {
  const uint64_t bytes = kSpans * unit, all = bytes + TrailerBytes(bytes, unit);
  const Tensor from = Memory(pool_bytes), into = Memory(pool_bytes), dense = Memory(bytes),
               digested = Memory(all);
  std::vector<uint32_t> blocks(pool_bytes / unit);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::mt19937 random(1);
  const SteadyClock clock;
  Took took;
  const auto time = [&](std::vector<double>* times, auto call) {
    const int64_t began_ns = clock.NowNs();
    call();
    times->push_back(static_cast<double>(clock.NowNs() - began_ns) / kSpans);
  };
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(blocks.begin(), blocks.end(), random);
    const Selection there = Selection::Indices({blocks.data(), kSpans}, unit);
    const Selection here = Selection::Indices({blocks.data() + kSpans, kSpans}, unit);
    const Selection others = Selection::Indices({blocks.data() + 2 * kSpans, kSpans}, unit);
    SelectionPlace gathered, scattered;
    time(&took.gather,
         [&] { Gather(there, from.data(), dense.mutable_data(), dense.bytes(), &gathered); });
    time(&took.digested,
         [&] { GatherDigested(others, from.data(), digested.mutable_data(), bytes, unit); });
    time(&took.verify, [&] { TRYST_CHECK(FindWrong(digested.data(), all, bytes).empty()); });
    time(&took.check,
         [&] { TRYST_CHECK(CheckSelection(here, pool_bytes, SelectionUse::kWrite).ok()); });
    time(&took.scatter,
         [&] { Scatter(here, dense.data(), into.mutable_data(), dense.bytes(), &scattered); });
  }
  return took;
}

int Run(const BenchFlags& flags) {
  std::string lines;
  for (const uint64_t unit : {64, 4096, 8192, 65536}) {
    if (!flags.Wants(absl::StrCat(unit).c_str())) continue;
    Took took =
        Measure(unit, unit == 64 ? 64 << 20 : 512 << 20, flags.quick ? 10 : 20 * flags.rounds);
    const double gather = Median(&took.gather), check = Median(&took.check),
                 scatter = Median(&took.scatter), made = Median(&took.digested) - gather,
                 verify = Median(&took.verify);
    printf(
        "%6d B: gather %7.1f ns a span, check %5.1f, scatter %7.1f; together %7.1f; digests %7.1f "
        "and %7.1f\n",
        static_cast<int>(unit), gather, check, scatter, gather + check + scatter, made, verify);
    absl::StrAppend(&lines, "{\"bench\":\"kv\",\"bytes\":", unit, ",\"gather_ns\":", gather,
                    ",\"check_ns\":", check, ",\"scatter_ns\":", scatter, ",\"digests_ns\":", made,
                    ",\"verify_ns\":", verify, "}\n");
  }
  return WriteLines(flags.json_file, lines) ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::BenchFlags flags;
  if (!tryst::ParseBenchFlags(argc, argv, &flags)) return 2;
  return tryst::Run(flags);
}
