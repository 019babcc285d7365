#include "bench/ps_model.h"

#include <gtest/gtest.h>

namespace tryst {
namespace {

PsCosts SlowCosts() {
  PsCosts costs;
  costs.link.latency_ns = 1000;
  costs.link.message_overhead_ns = 10;
  costs.link.bytes_per_second = 1'000'000'000;  // A byte is a nanosecond.
  costs.request_bytes = 100;
  costs.ask_ns = 300;
  costs.answer_ns = 500;
  costs.land_ns = 700;
  return costs;
}

TEST(PsModel, OneOfEverythingIsTheSumOfItsParts) {
  PsJob job;
  job.workers = job.servers = job.steps = 1;
  job.variable_bytes = {5000};
  const double one_way = 300 + (110 + 1000) + 500 + (5010 + 1000) + 700;
  EXPECT_DOUBLE_EQ(Predict(job, SlowCosts()).step_ms, 2 * one_way * 1e-6);
  job.standing = true;  // No request for the gradient.
  EXPECT_DOUBLE_EQ(Predict(job, SlowCosts()).step_ms, (2 * one_way - 300 - 1110) * 1e-6);
}

TEST(PsModel, WorkersShareTheServersWire) {
  PsJob job;
  job.workers = 8;
  job.servers = 1;
  job.variable_bytes = {1'000'000};
  PsCosts costs = SlowCosts();
  const PsPrediction eight = Predict(job, costs);
  EXPECT_GE(eight.step_ms, BoundMs(job, costs));
  // Most of the time one worker's gradient comes in while another's variable goes out.
  EXPECT_LT(eight.step_ms, 8 * 2 * 1.02);
  job.servers = 8;
  job.variable_bytes.assign(8, 125'000);
  EXPECT_LT(Predict(job, costs).step_ms, eight.step_ms / 2) << "eight wires are no faster";
}

TEST(PsModel, TheBusiestResourceBoundsTheStep) {
  PsJob job;
  job.workers = 50;
  job.servers = 5;
  job.variable_bytes.assign(100, 64);
  PsCosts costs = SlowCosts();
  const PsPrediction prediction = Predict(job, costs);
  EXPECT_GT(prediction.processors_busy, 0.9) << "small tensors should cost processors, not wires";
  EXPECT_LT(prediction.sending_busy, 0.5);
  EXPECT_GE(prediction.step_ms, 0.95 * BoundMs(job, costs));
  EXPECT_LT(prediction.step_ms, 1.2 * BoundMs(job, costs));
  costs.server_processors = 2;
  EXPECT_LT(Predict(job, costs).step_ms, 0.7 * prediction.step_ms);
}

TEST(PsModel, FusedMessagesSaveOverheadAndNoBytes) {
  PsJob job;
  job.workers = 20;
  job.servers = 4;
  job.variable_bytes.assign(400, 64);
  const PsCosts costs = SlowCosts();
  const PsPrediction single = Predict(job, costs);
  job.fused = true;
  const PsPrediction fused = Predict(job, costs);
  EXPECT_LT(fused.step_ms, single.step_ms / 5);
  EXPECT_LT(fused.events * 50, single.events);
  job.variable_bytes.assign(4, 10'000'000);
  const double large_fused = Predict(job, costs).step_ms;
  job.fused = false;
  EXPECT_NEAR(Predict(job, costs).step_ms, large_fused, 0.01 * large_fused);
}

}  // namespace
}  // namespace tryst
