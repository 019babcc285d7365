#include "tests/process/faults/fence_storm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "rendezvous/cancellation.h"
#include "tests/process/faults/canary_buffers.h"
#include "tests/process/pair/pool_counters.h"
#include "tests/process/pair/worker_pair.h"

namespace tryst {
namespace {

constexpr uint64_t kWords = (16 << 20) / sizeof(uint64_t);
constexpr size_t kAtOnce = 8;

using SteadyTime = std::chrono::steady_clock::time_point;

class FenceStorm {
 public:
  explicit FenceStorm(const FenceStormOptions& options) : options_(options), random_(options.seed) {
    source_ = *Tensor::Allocate(DType::kUint64, {static_cast<int64_t>(kWords)});
    uint64_t* at = static_cast<uint64_t*>(source_.mutable_data());
    for (uint64_t i = 0; i < kWords; ++i) at[i] = i;
    WorkerPairOptions pair;
    pair.open_nic = options.open_nic;
    pair.adjust = [&options](TransportsOptions* pool) {
      pool->eager_bytes = 64;
      pool->stripe_bytes = 32 << 10;
      pool->link.digests = options.digests;
      pool->link.queue_pairs = options.queue_pairs;
      pool->landing_bytes = 256 << 20;
    };
    pair_ = std::make_unique<WorkerPair>(pair);
  }

  FenceStormReport Run();

 private:
  struct Transfer {
    uint64_t words = 0;
    bool has_destination = false;
    Tensor destination;
    Cancellation cancellation;
    SteadyTime cancel_at;
    bool cancels = false;
    bool ended = false;  // Guarded by mu_.
  };

  uint64_t Draw(uint64_t below) { return random_() % below; }
  std::unique_ptr<Transfer> Start();
  void Cancel(Transfer* transfer);
  void OnDone(Transfer* transfer, const absl::Status& status, const Tensor& tensor);
  void Wrong(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (report_.wrong++ == 0) report_.first_wrong = what;
  }

  const FenceStormOptions& options_;
  std::mt19937_64 random_;
  Tensor source_;
  std::unique_ptr<WorkerPair> pair_;
  Mutex mu_;
  CanaryBuffers buffers_ ABSL_GUARDED_BY(mu_);
  FenceStormReport report_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<FenceStorm::Transfer> FenceStorm::Start() {
  auto owned = std::make_unique<Transfer>();
  Transfer* transfer = owned.get();
  // As in the simulator: mostly up to 256 KiB, spread evenly over the powers of two; some up to 16
  // MiB.
  const uint64_t power = Draw(32) == 0 ? 15 + Draw(6) : 7 + Draw(8);
  transfer->words = std::min((uint64_t{1} << power) + Draw(uint64_t{1} << power), kWords);
  uint64_t number = 0;
  RecvArgs args;
  {
    MutexLock lock(&mu_);
    number = report_.transfers++;
    transfer->has_destination = Draw(5) != 0;
    if (transfer->has_destination) transfer->destination = buffers_.Take(transfer->words);
  }
  args.destination = transfer->destination;
  transfer->cancels = Draw(10) != 0;
  if (transfer->cancels) args.cancellation = &transfer->cancellation;
  const uint64_t wire_ns = transfer->words * sizeof(uint64_t) * 1'000'000'000 /
                           std::max<uint64_t>(options_.bytes_per_second, 1);
  transfer->cancel_at = std::chrono::steady_clock::now() +
                        std::chrono::nanoseconds(Draw(200'000 + wire_ns * kAtOnce));
  const TensorKey key = WorkerPair::Key(absl::StrCat("t", number));
  const absl::Status sent = pair_->step()->Send(
      key, SendArgs(), *source_.Slice(0, static_cast<int64_t>(transfer->words)), false);
  TRYST_CHECK(sent.ok()) << sent;
  pair_->consumer()->Fetch(1, key, args, [this, transfer](Received&& received) {
    OnDone(transfer, received.status, received.tensor);
  });
  return owned;
}

void FenceStorm::Cancel(Transfer* transfer) {
  {
    MutexLock lock(&mu_);
    // The NIC may be writing this memory at this moment.
    report_.cancels += !transfer->ended;
    if (!transfer->ended && transfer->has_destination) {
      const uint64_t* first = transfer->destination.data_as<uint64_t>();
      report_.in_flight += __atomic_load_n(first, __ATOMIC_RELAXED) != CanaryBuffers::kFresh;
    }
  }
  transfer->cancellation.StartCancel();
}

void FenceStorm::OnDone(Transfer* transfer, const absl::Status& status, const Tensor& tensor) {
  const bool right = status.ok() && tensor.dtype() == DType::kUint64 &&
                     tensor.shape() == TensorShape({static_cast<int64_t>(transfer->words)}) &&
                     memcmp(tensor.data(), source_.data(), tensor.bytes()) == 0;
  MutexLock lock(&mu_);
  if (status.ok()) {
    ++report_.delivered;
    report_.bytes += transfer->words * sizeof(uint64_t);
    if (!right) Wrong(absl::StrCat("wrong bytes in a tensor of ", transfer->words, " words"));
  } else if (status.code() == absl::StatusCode::kCancelled && transfer->cancels) {
    ++report_.cancelled;
  } else {
    Wrong(status.ToString());
  }
  if (transfer->has_destination) buffers_.Give(std::move(transfer->destination));
  transfer->ended = true;
}

FenceStormReport FenceStorm::Run() {
  std::deque<std::unique_ptr<Transfer>> out;
  const auto more = [this] {
    MutexLock lock(&mu_);
    return report_.cancels < options_.cancels && report_.wrong == 0;
  };
  bool go_on = true;
  while (go_on || !out.empty()) {
    go_on = go_on && more();
    while (go_on && out.size() < kAtOnce) out.push_back(Start());
    const SteadyTime now = std::chrono::steady_clock::now();
    for (auto& transfer : out) {
      if (transfer->cancels && transfer->cancel_at <= now && !transfer->cancellation.cancelled()) {
        Cancel(transfer.get());
      }
    }
    {
      MutexLock lock(&mu_);
      out.erase(std::remove_if(out.begin(), out.end(),
                               [](const auto& transfer) {
                                 return transfer->ended &&
                                        (!transfer->cancels || transfer->cancellation.cancelled());
                               }),
                out.end());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  const uint64_t breaks = Ask(pair_->consumer(), &RdmaFetched).breaks;
  pair_.reset();
  MutexLock lock(&mu_);
  buffers_.CheckAll();
  report_.breaks = breaks;
  report_.late_words = buffers_.late_words();
  report_.reused = buffers_.reused();
  return report_;
}

}  // namespace

FenceStormReport RunFenceStorm(const FenceStormOptions& options) {
  return FenceStorm(options).Run();
}

}  // namespace tryst
