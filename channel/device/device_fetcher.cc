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
      lines_([this](int64_t step, const TensorKey& key, uint64_t transfer,
                    absl::AnyInvocable<void() &&> done) {
        FetchAside(step, TransferKey(key, transfer, "back"), Tensor(),
                   [done = std::move(done)](const absl::Status&, const Tensor&) mutable {
                     std::move(done)();
                   });
      }),
      ways_(poller, options.direct_again_ms, Aside()),
      views_(poller, options.view_renewal_ms, Aside()),
      deliver_timer_(this) {}

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

bool DeviceFetcher::WantsDevice(const TensorKey& key, const RecvArgs& args) {
  if (args.destination.valid()) return !args.destination.space().host_readable();
  return args.device_context != nullptr && !args.alloc_attrs.on_host && key.dst().type != "CPU";
}

void DeviceFetcher::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                          DoneFn&& done) {
  if (key.empty() || !WantsDevice(key, args)) {
    return fetcher_->Fetch(step_id, key, args, std::move(done));
  }
  if (dynamic_cast<GpuContext*>(args.device_context.get()) == nullptr) {
    return FetchByHost(step_id, key, args, std::move(done));
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
  fetcher_->AbortStep(step_id, status);
  poller_->PostFn([this, step_id, status] {
    std::vector<Op*> aborted;  // The newest first, so that the end of one does not start another.
    for (const auto& op : ops_) {
      if (op->step == step_id) aborted.push_back(op.get());
    }
    for (Op* op : aborted) op->Abort(status);
  });
}

// For a device that is not ours: the tensor comes whole into host memory, and the device's owner
// copies it from there.
void DeviceFetcher::FetchByHost(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                                DoneFn&& done) {
  if (args.device_context == nullptr) {
    poller_->PostFn([done = std::move(done)]() mutable {
      FailReceive(absl::InvalidArgumentError(
                      "the receive has a destination in a GPU's memory and no device context "
                      "by which to copy there: set RecvArgs::device_context"),
                  nullptr, std::move(done));
    });
    return;
  }
  RecvArgs host_args = args;
  host_args.destination = Tensor();
  host_args.executor = nullptr;
  fetcher_->Fetch(
      step_id, key, host_args, [args, done = std::move(done)](Received&& received) mutable {
        const Tensor& tensor = received.tensor;
        if (!received.status.ok() || received.is_dead || tensor.dtype() == DType::kString) {
          return EndReceive(args.executor, std::move(received), std::move(done));
        }
        absl::StatusOr<Tensor> into = args.destination;
        if (!args.destination.valid()) {
          into = args.device_context->Allocate(tensor.dtype(), tensor.shape(), args.alloc_attrs);
        }
        if (!into.ok()) return FailReceive(into.status(), args.executor, std::move(done));
        args.device_context->StartCopy(
            tensor, *into,
            [args, tensor, into = *into, done = std::move(done)](absl::Status copied) mutable {
              if (!copied.ok()) into = Tensor();
              EndReceive(args.executor, {std::move(copied), std::move(into)}, std::move(done));
            });
      });
}

void DeviceFetcher::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys,
                              const RecvArgs& args, ManyDoneFn done) {
  ArgsOfEach each(args);
  bool any = false;
  for (size_t i = 0; i < keys.size() && (i == 0 || !args.destinations.empty()); ++i) {
    any = any || WantsDevice(keys[i], each.At(i));
  }
  if (!any) {
    return fetcher_->FetchMany(step_id, keys, args, std::move(done));
  }
  struct Many {
    std::atomic<size_t> left{0};
    std::vector<Received> results;
    ManyDoneFn done;
  };
  auto many = std::make_shared<Many>();
  many->results.resize(keys.size());
  many->left = keys.size();
  many->done = std::move(done);
  for (size_t i = 0; i < keys.size(); ++i) {
    Fetch(step_id, keys[i], each.At(i), [many, i](Received&& received) {
      many->results[i] = std::move(received);
      if (many->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      absl::Status first;
      for (const Received& each : many->results) {
        if (first.ok()) first = each.status;
      }
      std::move(many->done)(std::move(first), absl::MakeSpan(many->results));
    });
  }
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
