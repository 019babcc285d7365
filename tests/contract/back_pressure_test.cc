// When memory is short, the sender and the fetcher each get a status that says so.

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/process/pair/moment.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr int64_t kBytes = 1 << 20;

WorkerPairOptions SoftPair(bool pins_memory = false) {
  WorkerPairOptions options;
  options.open_nic = [pins_memory] {
    SoftNicOptions soft;
    soft.limits.pins_memory = pins_memory;
    auto nic = OpenSoftNic(soft);
    TRYST_CHECK(nic.ok()) << nic.status();
    return *std::move(nic);
  };
  return options;
}

Tensor Filled(int fill) {
  Tensor tensor = *Tensor::Allocate(DType::kUint8, {kBytes});
  memset(tensor.mutable_data(), fill, kBytes);
  return tensor;
}

absl::Status Send(WorkerPair* pair, const TensorKey& key, int fill) {
  return pair->step()->Send(key, SendArgs(), Filled(fill), false);
}

struct Fetched {
  Moment ended;
  absl::Status status;
  Tensor tensor;
};

std::shared_ptr<Fetched> StartFetch(WorkerPair* pair, const TensorKey& key,
                                    const RecvArgs& args = {}) {
  auto fetched = std::make_shared<Fetched>();
  pair->consumer()->Fetch(1, key, args, [fetched](Received&& received) {
    fetched->status = std::move(received.status);
    fetched->tensor = std::move(received.tensor);
    fetched->ended.Come();
  });
  return fetched;
}

// When a consumer is slow to fetch, the producer's Send is refused and changes nothing. Its
// callback comes as soon as the channel has taken a tensor away.
TEST(BackPressureTest, SendIsRefusedUntilTheConsumerFetches) {
  WorkerPairOptions options = SoftPair();
  options.max_held_bytes = 4 * kBytes;
  WorkerPair pair(options);
  const TensorKey key = WorkerPair::Key("slow");
  int sent = 0;
  absl::Status refused;
  while ((refused = Send(&pair, key, sent)).ok()) ASSERT_LT(++sent, 100);
  EXPECT_EQ(sent, 4);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(refused.message().find(absl::StrCat(options.max_held_bytes)), std::string::npos)
      << refused;

  // Sends twenty more: sends when there is room, and fetches when there is not.
  constexpr int kAll = 24;
  for (int fetched = 0; fetched < kAll; ++fetched) {
    const bool waits = sent < kAll;
    Moment room;
    if (waits) {
      ASSERT_EQ(Send(&pair, key, sent).code(), absl::StatusCode::kResourceExhausted);
      pair.step()->WhenRoom(kBytes, [&room](absl::Status status) {
        EXPECT_TRUE(status.ok()) << status;
        room.Come();
      });
      EXPECT_FALSE(room.Wait(std::chrono::milliseconds(0)));
    }
    auto got = StartFetch(&pair, key);
    ASSERT_TRUE(got->ended.Wait());
    ASSERT_TRUE(got->status.ok()) << got->status;
    EXPECT_EQ(got->tensor.data_as<uint8_t>()[kBytes - 1], fetched);
    if (!waits) continue;
    ASSERT_TRUE(room.Wait());
    ASSERT_TRUE(Send(&pair, key, sent).ok());
    ++sent;
  }
  EXPECT_EQ(sent, kAll);
}

// Tensors that the application keeps use up the landing budget, where the NIC pins them. A fetch
// that cannot land for that reason fails at its deadline and says so. Its tensor stays with the
// producer, and can be fetched when there is room.
TEST(BackPressureTest, WhoFindsNoLandingRoomIsToldWhatHoldsIt) {
  constexpr uint64_t kCapBytes = 8 * kBytes;
  WorkerPairOptions options = SoftPair(/*pins_memory=*/true);
  options.adjust = [](TransportsOptions* pool) { pool->landing_bytes = kCapBytes; };
  WorkerPair pair(options);
  const TensorKey key = WorkerPair::Key("kept");
  std::deque<Tensor> kept;
  const SteadyClock clock;
  absl::Status full;
  for (int i = 0; full.ok(); ++i) {
    ASSERT_LT(i, 20);
    ASSERT_TRUE(Send(&pair, key, i).ok());
    RecvArgs args;
    args.deadline = Deadline::After(clock, absl::Milliseconds(400));
    auto got = StartFetch(&pair, key, args);
    ASSERT_TRUE(got->ended.Wait());
    full = got->status;
    if (full.ok()) kept.push_back(std::move(got->tensor));
  }
  EXPECT_EQ(kept.size(), kCapBytes / kBytes);
  EXPECT_EQ(full.code(), absl::StatusCode::kDeadlineExceeded) << full;
  for (const std::string& said : {std::string("landing room"), absl::StrCat(kBytes, " bytes"),
                                  absl::StrCat(kCapBytes, " of the landing cap, ", kCapBytes),
                                  std::string("raise landing_bytes")}) {
    EXPECT_NE(full.message().find(said), std::string::npos) << said << " in " << full;
  }
  const uint8_t next = static_cast<uint8_t>(kept.size());
  auto got = StartFetch(&pair, key);
  EXPECT_FALSE(got->ended.Wait(std::chrono::milliseconds(100)));
  kept.pop_front();
  ASSERT_TRUE(got->ended.Wait());
  ASSERT_TRUE(got->status.ok()) << got->status;
  EXPECT_EQ(got->tensor.data_as<uint8_t>()[0], next);
}

}  // namespace
}  // namespace tryst
