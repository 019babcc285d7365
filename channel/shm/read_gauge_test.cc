#include "channel/shm/read_gauge.h"

#include <cstdint>
#include <deque>
#include <utility>

#include "gtest/gtest.h"

namespace tryst {
namespace {

using Mode = ReadGauge::Mode;
constexpr uint64_t kMiB = 1 << 20;

// A link that moves tensors one after the other, each way at its own speed, while `depth` of them
// are asked for.
class Machine {
 public:
  Machine(double parts_gib_per_s, double read_gib_per_s)
      : speed_{parts_gib_per_s, read_gib_per_s} {}

  // Moves `bytes`, in tensors of `tensor_bytes`; returns how many of them were read.
  uint64_t Move(ReadGauge* gauge, uint64_t bytes, uint64_t tensor_bytes, size_t depth) {
    uint64_t read = 0;
    for (uint64_t done = 0; done < bytes; done += tensor_bytes) {
      while (out_.size() < depth) {
        const Mode mode = gauge->Next();
        out_.push_back({mode, gauge->Begin(now_ns_)});
      }
      const auto [mode, trip] = out_.front();
      out_.pop_front();
      const double gib = static_cast<double>(tensor_bytes) / (1 << 30);
      now_ns_ += static_cast<int64_t>(1e9 * gib / speed_[mode == Mode::kRead ? 1 : 0]);
      if (pause_every_ns_ > 0 && now_ns_ >= next_pause_ns_) {
        now_ns_ += pause_ns_;
        paused_ns_ += pause_ns_;
        next_pause_ns_ = now_ns_ + pause_every_ns_;
      }
      gauge->End(trip, tensor_bytes, now_ns_);
      if (mode == Mode::kRead) read += tensor_bytes;
    }
    return read;
  }
  void Rest(int64_t ns) { now_ns_ += ns; }
  int64_t now_ns() const { return now_ns_; }
  // From now on it stands still for so long, so often.
  void Pause(int64_t ns, int64_t every_ns) {
    pause_ns_ = ns;
    pause_every_ns_ = every_ns;
    next_pause_ns_ = now_ns_;
  }
  int64_t paused_ns() const { return paused_ns_; }
  void Is(double parts_gib_per_s, double read_gib_per_s) {
    speed_[0] = parts_gib_per_s;
    speed_[1] = read_gib_per_s;
  }

 private:
  double speed_[2];
  int64_t now_ns_ = 1;
  int64_t pause_ns_ = 0, pause_every_ns_ = 0, next_pause_ns_ = 0, paused_ns_ = 0;
  std::deque<std::pair<Mode, ReadGauge::Trip>> out_;
};

// The curves of three processors: one thread's two copies and the kernel's reads without helpers
// (0024), with three, and with seven.
TEST(ReadGaugeTest, FindsWhatIsFasterWhereverItBegins) {
  struct {
    double parts, read;
    Mode faster;
  } const machines[] = {{10, 4.5, Mode::kParts}, {8, 14, Mode::kRead}, {7.4, 25, Mode::kRead}};
  for (const auto& machine : machines) {
    for (const Mode first : {Mode::kParts, Mode::kRead}) {
      for (const size_t depth : {1, 8}) {
        for (const uint64_t tensor : {kMiB, 16 * kMiB, 256 * kMiB}) {
          Machine link(machine.parts, machine.read);
          ReadGauge gauge(first);
          link.Move(&gauge, 1024 * kMiB + 16 * depth * tensor, tensor, depth);
          const uint64_t then = 32 * 1024 * kMiB;
          const uint64_t read = link.Move(&gauge, then, tensor, depth);
          const uint64_t right = machine.faster == Mode::kRead ? read : then - read;
          EXPECT_GE(right, then / 10 * 8) << machine.read << " " << depth << " " << tensor;
        }
      }
    }
  }
}

// 64 KiB on the same three, and where the two processors are far from each other: parts and reads
// as they were measured, the latter without helpers.
TEST(ReadGaugeTest, FindsWhatIsFasterInTheMiddle) {
  struct {
    double parts, read;
    Mode faster;
  } const machines[] = {{11, 4.6, Mode::kParts}, {7, 10, Mode::kRead}, {2, 8, Mode::kRead}};
  for (const auto& machine : machines) {
    for (const uint64_t tensor : {kMiB / 32, kMiB / 16, kMiB / 2}) {
      for (const size_t depth : {1, 8}) {
        Machine link(machine.parts, machine.read);
        ReadGauge gauge(Mode::kParts, ReadGauge::kMeasureSmallBytes);
        link.Move(&gauge, 2 * ReadGauge::kMeasureSmallBytes + 8 * tensor, tensor, depth);
        EXPECT_EQ(gauge.Next(), machine.faster) << machine.read << " " << tensor << " " << depth;
        const uint64_t then = 8 * 1024 * kMiB;
        const uint64_t read = link.Move(&gauge, then, tensor, depth);
        const uint64_t right = machine.faster == Mode::kRead ? read : then - read;
        EXPECT_GE(right, then / 100 * 99) << machine.read << " " << tensor << " " << depth;
      }
    }
  }
}

TEST(ReadGaugeTest, DoesNotCountTheTimeWithoutTensors) {
  Machine link(10, 4);
  ReadGauge gauge(Mode::kParts);
  for (int i = 0; i < 4096; ++i) {
    link.Move(&gauge, kMiB, kMiB, 1);
    link.Rest(i % 2 == 0 ? 1'000'000'000 : 1000);
  }
  EXPECT_EQ(gauge.Next(), Mode::kParts);
}

TEST(ReadGaugeTest, HearsThatTheMachineHasChanged) {
  Machine link(10, 4);
  ReadGauge gauge(Mode::kParts);
  link.Move(&gauge, 1024 * kMiB, 16 * kMiB, 4);
  ASSERT_EQ(gauge.Next(), Mode::kParts);
  link.Is(5, 20);  // Helpers have cores now.
  link.Move(&gauge, 8 * 1024 * kMiB, 16 * kMiB, 4);
  EXPECT_EQ(gauge.Next(), Mode::kRead);
}

// As 32 Xeon cores move 16 MiB with helpers: a trial costs what has to drain before and behind it.
// Now and then a thread has no processor for a while.
TEST(ReadGaugeTest, TrialsCostLittle) {
  for (const size_t depth : {1, 8, 32}) {
    for (const int64_t pause_ns : {0, 4'000'000}) {
      Machine link(8, 31);
      ReadGauge gauge(Mode::kRead);
      link.Move(&gauge, 8 * 1024 * kMiB, 16 * kMiB, depth);  // The first ones.
      if (pause_ns > 0) link.Pause(pause_ns, 200'000'000);
      const int64_t began_ns = link.now_ns();
      const uint64_t gib = 256;
      link.Move(&gauge, gib * 1024 * kMiB, 16 * kMiB, depth);
      const int64_t took_ns = link.now_ns() - began_ns - link.paused_ns();
      EXPECT_LE(took_ns, 1.02e9 * static_cast<double>(gib) / 31) << depth << " " << pause_ns;
    }
  }
}

// Whoever stands still while the faster way is tried makes it lose once.
TEST(ReadGaugeTest, APauseInATrialDelaysTheNextByLittle) {
  for (const int64_t pause_ns : {int64_t{20'000'000}, int64_t{10'000'000'000}}) {
    Machine link(8, 31);
    ReadGauge gauge(Mode::kParts);
    link.Move(&gauge, 32 * kMiB, kMiB, 1);  // From here on reading is tried.
    link.Pause(pause_ns, int64_t{1} << 60);
    uint64_t moved = 0;
    for (; moved < 64 * 1024 && gauge.chosen() == Mode::kParts; moved += 16) {
      link.Move(&gauge, 16 * kMiB, kMiB, 1);
    }
    EXPECT_EQ(link.paused_ns(), pause_ns);
    EXPECT_LE(moved, 1024u) << pause_ns;
  }
}

// One look may find that many tensors have come in no time.
TEST(ReadGaugeTest, WhatTakesNoTimeIsMeasuredAllTheSame) {
  ReadGauge gauge(Mode::kParts);
  for (int i = 0; i < 1000; ++i) gauge.End(gauge.Begin(1), kMiB, 1);
  EXPECT_GT(gauge.BytesPerNs(Mode::kParts), 0);
  EXPECT_GT(gauge.BytesPerNs(Mode::kRead), 0);
  EXPECT_EQ(gauge.Next(), Mode::kParts);
}

TEST(ReadGaugesTest, AsksThoseWhoseSizeItIs) {
  ReadGauges gauges;
  for (const bool decided : {false, true}) {
    for (const bool helps : {false, true}) {
      const auto of = [&](uint64_t bytes) { return gauges.Of(bytes, helps, decided); };
      EXPECT_EQ(of(32 * 1024 - 1), nullptr);
      EXPECT_EQ(of(32 * 1024) == nullptr, decided);
      EXPECT_EQ(of(32 * 1024), of(128 * 1024 - 1));
      EXPECT_EQ(of(kMiB - 1) == nullptr, decided);
      EXPECT_EQ(of(kMiB) == nullptr, decided && !helps);
      EXPECT_EQ(of(8 * kMiB) == nullptr, !helps);
      if (!decided) {
        EXPECT_NE(of(128 * 1024 - 1), of(128 * 1024));
        EXPECT_NE(of(kMiB - 1), of(kMiB));
        EXPECT_NE(of(8 * kMiB - 1), of(8 * kMiB));
      }
    }
  }
}

TEST(ReadGaugesTest, SaysWhatItHasMeasured) {
  ReadGauges gauges;
  EXPECT_EQ(gauges.Explain(), "");
  Machine middle(8.5, 6.5);
  middle.Move(gauges.Of(kMiB / 4, false, false), 8 * kMiB, kMiB / 4, 1);
  EXPECT_EQ(gauges.Explain(), "tensors of 128 KiB to 1 MiB go in parts (8.5 GiB/s)");
  middle.Move(gauges.Of(kMiB / 4, false, false), 56 * kMiB, kMiB / 4, 1);
  EXPECT_EQ(gauges.Explain(),
            "tensors of 128 KiB to 1 MiB go in parts (8.5 GiB/s; read by the consumer 6.5)");
  Machine large(8, 31);
  large.Move(gauges.Of(16 * kMiB, true, false), 1024 * kMiB, 16 * kMiB, 1);
  EXPECT_EQ(gauges.Explain(),
            "tensors of 128 KiB to 1 MiB go in parts (8.5 GiB/s; read by the consumer 6.5)"
            ", tensors from 8 MiB on are read by the consumer (31.0 GiB/s; in parts 8.0)");
}

// Tensors that are not accepted take time and bring nothing; a way on which none comes is left.
TEST(ReadGaugeTest, LeavesNoTripOpen) {
  ReadGauge gauge(Mode::kParts);
  int64_t now_ns = 1;
  for (int i = 0; i < 1000; ++i) {
    const ReadGauge::Trip trip = gauge.Begin(now_ns);
    now_ns += 1000;
    gauge.End(trip, 0, now_ns);
  }
  EXPECT_EQ(gauge.Next(), Mode::kParts);
}

}  // namespace
}  // namespace tryst
