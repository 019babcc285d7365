#include "channel/device/device_fetcher.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "channel/device/device_fetch.h"

namespace tryst {
namespace {

constexpr int64_t kDeliverAgainNs = 1'000'000;
constexpr absl::Duration kAsidePatience = absl::Seconds(30);

}  // namespace

DeviceFetcher::DeviceFetcher(Poller* poller, TensorFetcher* fetcher, DeviceFetcherOptions options)
    : poller_(poller),
      fetcher_(fetcher),
      options_(options),
      lines_([this](const TensorKey& key, uint64_t transfer, absl::AnyInvocable<void() &&> heard) {
        LetGo(key, transfer, "back", std::move(heard));
      }),
      ways_(poller, options.direct_again_ms, Aside()),
      views_(poller, options.view_renewal_ms, Aside()),
      deliver_timer_(this) {}

void DeviceFetcher::LetGo(const TensorKey& key, uint64_t transfer, const char* how,
                          absl::AnyInvocable<void() &&> heard) {
  FetchAside(kNoStep, TransferKey(key, transfer, how), Tensor(),
             [heard = std::move(heard)](const absl::Status&, const Tensor&) mutable {
               std::move(heard)();
             });
}

ProvedWays::AsideFn DeviceFetcher::Aside() {
  return [this](int64_t step, const absl::StatusOr<TensorKey>& key, Tensor into,
                absl::AnyInvocable<void(absl::Status, Tensor) &&> done) {
    FetchAside(step, key, std::move(into), std::move(done));
  };
}

bool DeviceFetcher::Drained() const {
  return ops_.empty() && asides_ == 0 && ways_.idle() && views_.empty() && lines_.empty();
}

DeviceFetcher::~DeviceFetcher() {
  TRYST_CHECK(Drained() && undelivered_.empty());
  poller_->CancelTimer(&deliver_timer_);
}

void DeviceFetcher::OnPoller(absl::AnyInvocable<void() &&> fn) {
  if (poller_->OnThread()) return std::move(fn)();
  poller_->PostFn(std::move(fn));
}

void DeviceFetcher::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                          FetchedFn&& done) {
  if (key.empty() || !HostFetcher::WantsDevice(key, args) ||
      dynamic_cast<GpuContext*>(args.device_context.get()) == nullptr) {
    return on_host_.Fetch(step_id, key, args, std::move(done));
  }
  poller_->PostFn(
      [this, op = std::make_unique<Op>(this, step_id, key, args, std::move(done))]() mutable {
        Begin(std::move(op));
      });
}

void DeviceFetcher::Begin(std::unique_ptr<Op> op) {
  ++counters_.fetches;
  ops_.push_front(std::move(op));
  ops_.front()->self = ops_.begin();
  ops_.front()->Start();
}

// Also ends fetches that wait in line or copy, of which the channel knows nothing.
void DeviceFetcher::AbortStep(int64_t step_id, const absl::Status& status) {
  on_host_.AbortStep(step_id, status);
  poller_->PostFn([this, step_id, status] {
    std::vector<Op*> aborted;  // The newest first, so that the end of one does not start another.
    for (const auto& op : ops_) {
      if (op->step == step_id) aborted.push_back(op.get());
    }
    for (Op* op : aborted) op->Abort(status);
    kept_.DropStep(step_id);
  });
}

void DeviceFetcher::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys,
                              const RecvArgs& args, ManyFetchedFn done) {
  if (!HostFetcher::AnyWantsDevice(keys, args)) {
    return fetcher_->FetchMany(step_id, keys, args, std::move(done));
  }
  FetchEach(this, step_id, keys, args, std::move(done));
}

void DeviceFetcher::FetchAside(int64_t step, const absl::StatusOr<TensorKey>& key,
                               Tensor destination,
                               absl::AnyInvocable<void(absl::Status, Tensor) &&> done) {
  ++asides_;
  if (!key.ok()) {
    poller_->PostFn([this, status = key.status(), done = std::move(done)]() mutable {
      --asides_;
      std::move(done)(status, Tensor());
    });
    return;
  }
  RecvArgs args;
  args.destination = std::move(destination);
  args.deadline = Deadline::After(poller_->clock(), kAsidePatience);
  fetcher_->Fetch(step, *key, args, [this, done = std::move(done)](Received&& got) mutable {
    OnPoller([this, got = std::move(got), done = std::move(done)]() mutable {
      --asides_;
      std::move(done)(std::move(got.status), std::move(got.tensor));
    });
  });
}

void DeviceFetcher::Deliver(Executor* executor, Executor::Work work) {
  if (executor->TryRun(&work)) return;
  undelivered_.emplace_back(executor, std::move(work));
  if (!deliver_timer_.is_set()) {
    poller_->SetTimer(&deliver_timer_, poller_->clock().NowNs() + kDeliverAgainNs);
  }
}

void DeviceFetcher::DeliverTimer::OnTimer() {
  std::deque<std::pair<Executor*, Executor::Work>> works;
  works.swap(fetcher->undelivered_);
  for (auto& [executor, work] : works) fetcher->Deliver(executor, std::move(work));
}

std::string DeviceFetcher::Explain() const {
  return absl::StrCat(ways_.Explain(), "device fetches: ", counters_.ipc, " by cuda_ipc (",
                      counters_.views, " by reference, ", counters_.in_chunks,
                      " in chunks of virtual memory), ", counters_.direct, " by rdma + GPUDirect, ",
                      counters_.staged, " staged in chunks, ", counters_.inside,
                      " inside of a message\n");
}

}  // namespace tryst
