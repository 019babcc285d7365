// What the data half of weights/ costs on one core, and how many bytes a delta saves.
//
//   weights_bench [--quick] [--rounds N] [--only FIGURE] [--json FILE]
//
// The weights are 16.8 million of N(0, 0.02), in bfloat16. A step is one of Adam on float masters:
// about the learning rate each, in the direction of the gradient. Rates are bytes of the version a
// second; beside them stands a copy of as many bytes, in the same turns.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "bench/flags.h"
#include "weights/cast.h"
#include "weights/delta.h"
#include "weights/digests.h"
#include "weights/fetch_plan.h"
#include "weights/sums.h"

namespace tryst {
namespace {

struct Figure {
  std::string name;
  uint64_t bytes;
  std::function<void()> run;
  std::vector<double> rates;
};

double Measure(const Figure& figure) {
  SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  figure.run();
  return static_cast<double>(figure.bytes) / (clock.NowNs() - begin_ns);
}

struct Weights {
  std::vector<float> masters;
  std::vector<uint16_t> wire;
};

Weights Initial(std::mt19937_64* random, size_t count) {
  std::normal_distribution<float> normal(0, 0.02f);
  Weights weights;
  weights.masters.resize(count);
  weights.wire.resize(count);
  for (float& master : weights.masters) master = normal(*random);
  Cast(DType::kFloat, weights.masters.data(), DType::kBfloat16, weights.wire.data(), count);
  return weights;
}

// Makes the next version of the weights. The first `frozen` masters stay as they are.
Weights Step(std::mt19937_64* random, const Weights& before, float rate, size_t frozen) {
  std::normal_distribution<float> normal;
  Weights after = before;
  for (size_t i = frozen; i < after.masters.size(); ++i) {
    after.masters[i] -= rate * std::min(3.0f, std::max(-3.0f, normal(*random)));
  }
  Cast(DType::kFloat, after.masters.data(), DType::kBfloat16, after.wire.data(), after.wire.size());
  return after;
}

struct Change {
  std::string name;
  std::vector<uint16_t> now;
  std::string coded;
};

std::string Line(const std::string& figure, uint64_t bytes, double value, const char* unit) {
  return absl::StrCat("{\"figure\":\"", figure,
                      "\",\"system\":\"tryst_weights\",\"size_bytes\":", bytes,
                      ",\"value\":", value, ",\"unit\":\"", unit, "\"}\n");
}

int Run(const BenchFlags& flags) {
  const size_t count = size_t{1} << (flags.quick ? 20 : 24);
  const uint64_t bytes = count * sizeof(uint16_t);
  std::mt19937_64 random(1);
  const Weights base = Initial(&random, count);
  const std::vector<uint16_t> halves = base.wire;
  std::vector<Change> changes;
  for (const auto& [name, rate, frozen] :
       {std::make_tuple("1e-7", 1e-7f, size_t{0}), std::make_tuple("1e-6", 1e-6f, size_t{0}),
        std::make_tuple("1e-5", 1e-5f, size_t{0}),
        std::make_tuple("1e-6_half_frozen", 1e-6f, count / 2),
        std::make_tuple("same", 0.0f, size_t{0})}) {
    Change change{name, Step(&random, base, rate, frozen).wire, {}};
    EncodeDelta(base.wire.data(), change.now.data(), bytes, 2, &change.coded);
    changes.push_back(std::move(change));
  }

  std::string lines;
  std::vector<Figure> figures;
  std::vector<uint16_t> out(count);
  CoverSum sum;
  const TensorShape shape = {static_cast<int64_t>(count / 4096), 4096};
  const Box whole = Box::Whole(shape);
  const Strides dense = Dense(whole.extent);
  Strides transposed;
  transposed.steps = {1, shape.dim(0)};
  const StridedCopy transposing = PlanCopy(whole.extent, 2, dense, transposed);
  figures.push_back({"copy", bytes, [&] { memcpy(out.data(), base.wire.data(), bytes); }, {}});
  figures.push_back(
      {"transpose", bytes, [&] { RunCopy(transposing, base.wire.data(), out.data()); }, {}});
  figures.push_back(
      {"digest", bytes, [&] { sum.low += BlockDigests(base.wire.data(), bytes).back().low; }, {}});
  figures.push_back({"sum_of_2_bytes",
                     bytes,
                     [&] { sum += SumOf(0, shape, whole, 2, base.wire.data(), dense); },
                     {}});
  figures.push_back({"sum_of_4_bytes",
                     2 * bytes,
                     [&] { sum += SumOf(0, shape, whole, 4, base.masters.data(), dense); },
                     {}});
  figures.push_back(
      {"cast_float_to_bfloat16",
       bytes,
       [&] { Cast(DType::kFloat, base.masters.data(), DType::kBfloat16, out.data(), count); },
       {}});
  figures.push_back(
      {"cast_half_to_bfloat16",
       bytes,
       [&] { Cast(DType::kHalf, halves.data(), DType::kBfloat16, out.data(), count); },
       {}});
  for (const Change& change : changes) {
    lines += Line("delta_times_fewer_" + change.name, bytes,
                  static_cast<double>(bytes) / change.coded.size(), "x");
    figures.push_back({"delta_encode_" + change.name,
                       bytes,
                       [&, coded = std::string()]() mutable {
                         coded.clear();
                         EncodeDelta(base.wire.data(), change.now.data(), bytes, 2, &coded);
                       },
                       {}});
    figures.push_back(
        {"delta_decode_" + change.name,
         bytes,
         [&] {
           TRYST_CHECK(DecodeDelta(change.coded, base.wire.data(), bytes, 2, out.data()).ok());
         },
         {}});
    // The member patches the memory that it serves from.
    figures.push_back(
        {"delta_patch_" + change.name,
         bytes,
         [&, patched = change.now]() mutable {
           TRYST_CHECK(DecodeDelta(change.coded, patched.data(), bytes, 2, patched.data()).ok());
         },
         {}});
  }
  for (int round = 0; round <= flags.rounds; ++round) {
    for (Figure& figure : figures) {
      if (!flags.Wants(figure.name.c_str())) continue;
      const double rate = Measure(figure);
      if (round > 0) figure.rates.push_back(rate);  // The first one finds its memory.
    }
  }
  for (Figure& figure : figures) {
    if (figure.rates.empty()) continue;
    std::sort(figure.rates.begin(), figure.rates.end());
    lines += Line(figure.name, figure.bytes, figure.rates[figure.rates.size() / 2], "GB/s");
  }
  TRYST_CHECK(sum != CoverSum() || !flags.only.empty());
  fputs(lines.c_str(), stdout);
  return WriteLines(flags.json_file, lines) ? 0 : 1;
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  tryst::BenchFlags flags;
  if (!tryst::ParseBenchFlags(argc, argv, &flags)) return 2;
  return tryst::Run(flags);
}
