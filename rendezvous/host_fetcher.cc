#include "rendezvous/host_fetcher.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/packed_tensor.h"

namespace tryst {
namespace {

// The memory that a tensor is copied into.
absl::StatusOr<Tensor> Into(const TensorKey& key, const RecvArgs& args, const Tensor& tensor) {
  const Tensor& wanted = args.destination;
  if (!wanted.valid()) {
    return args.device_context->Allocate(tensor.dtype(), tensor.shape(), args.alloc_attrs);
  }
  if (wanted.dtype() == tensor.dtype() && wanted.shape() == tensor.shape()) return wanted;
  return absl::InvalidArgumentError(
      absl::StrCat("The destination of ", key.text(), " is ", DTypeName(wanted.dtype()),
                   wanted.shape().ToString(), " and the tensor is ", DTypeName(tensor.dtype()),
                   tensor.shape().ToString()));
}

}  // namespace

bool HostFetcher::WantsDevice(const TensorKey& key, const RecvArgs& args) {
  if (args.destination.valid()) return !args.destination.on_host();
  if (args.device_context == nullptr || key.empty()) return false;
  return args.on_device || (!args.alloc_attrs.on_host && key.dst().type != "CPU");
}

bool HostFetcher::AnyWantsDevice(absl::Span<const TensorKey> keys, const RecvArgs& args) {
  if (args.destinations.empty() && args.device_context == nullptr) return false;
  ArgsOfEach each(args);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (WantsDevice(keys[i], each.At(i))) return true;
  }
  return false;
}

void HostFetcher::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                        FetchedFn&& done) {
  if (!WantsDevice(key, args)) return fetcher_->Fetch(step_id, key, args, std::move(done));
  if (args.device_context == nullptr) {
    return FailReceive(absl::InvalidArgumentError(absl::StrCat(
                           "the receive has a destination in a GPU's memory and no device context "
                           "by which to copy there: set RecvArgs::device_context; key: ",
                           key.text())),
                       args.executor, std::move(done));
  }
  auto op = std::make_unique<Op>(Op{{step_id, key}, args, std::move(done)});
  {
    MutexLock lock(&mu_);
    Step& step = steps_[step_id];
    ++step.fetches;
    op->aborts = step.aborts;
  }
  KeptTensor kept = kept_.TakeFirst(op->place);
  if (kept.valid()) return Give(std::move(op), std::move(kept));
  absl::Status room = kept_.Admit(op->place);
  if (!room.ok()) return End(std::move(op), {std::move(room)});
  RecvArgs on_host = args;
  on_host.destination = Tensor();
  on_host.device_context = nullptr;
  on_host.on_device = false;
  on_host.executor = nullptr;
  on_host.by_reference = true;  // The device reads it, once.
  fetcher_->Fetch(step_id, key, on_host, [this, op = std::move(op)](Received&& received) mutable {
    OnFetched(std::move(op), std::move(received));
  });
}

void HostFetcher::OnFetched(std::unique_ptr<Op> op, Received&& received) {
  if (!received.status.ok()) return End(std::move(op), std::move(received));
  if (received.tensor.dtype() == DType::kPacked) {
    absl::StatusOr<Tensor> unpacked = Unpack(received.tensor);
    if (!unpacked.ok()) return End(std::move(op), {unpacked.status()});
    received.tensor = *std::move(unpacked);
  }
  KeptTensor first = kept_.FirstBefore(op->place, {std::move(received.tensor), received.is_dead});
  Give(std::move(op), std::move(first));
}

void HostFetcher::Give(std::unique_ptr<Op> op, KeptTensor first) {
  if (first.is_dead || first.tensor.dtype() == DType::kString) {
    return End(std::move(op), {absl::OkStatus(), std::move(first.tensor), first.is_dead});
  }
  absl::StatusOr<Tensor> into = Into(op->place.second, op->args, first.tensor);
  if (into.ok()) return Copy(std::move(op), std::move(first.tensor), *std::move(into));
  Keep(*op, std::move(first.tensor));
  End(std::move(op), {into.status()});
}

void HostFetcher::Copy(std::unique_ptr<Op> op, Tensor from, Tensor into) {
  copying_.fetch_add(1, std::memory_order_relaxed);
  // Held here, too: the end of the copy may be told on another thread before this call returns.
  const std::shared_ptr<DeviceContext> context = op->args.device_context;
  context->StartCopy(from, into,
                     [this, context, from, into, op = std::move(op)](absl::Status copied) mutable {
                       if (!copied.ok()) {
                         Keep(*op, std::move(from));
                         into = Tensor();
                       }
                       from = Tensor();
                       End(std::move(op), {std::move(copied), std::move(into)});
                       copying_.fetch_sub(1, std::memory_order_release);
                     });
}

// For the next fetch, unless the step has ended since `op` began: nobody would let go of it then.
void HostFetcher::Keep(const Op& op, Tensor tensor) {
  Tensor own = Apart(std::move(tensor));
  MutexLock lock(&mu_);
  if (steps_[op.place.first].aborts == op.aborts) kept_.Keep(op.place, {std::move(own)});
}

void HostFetcher::End(std::unique_ptr<Op> op, Received&& received) {
  {
    MutexLock lock(&mu_);
    const auto step = steps_.find(op->place.first);
    if (--step->second.fetches == 0) steps_.erase(step);
  }
  Executor* const executor = op->args.executor;
  FetchedFn done = std::move(op->done);
  op = nullptr;
  EndReceive(executor, std::move(received), std::move(done));
}

void HostFetcher::AbortStep(int64_t step_id, const absl::Status& status) {
  fetcher_->AbortStep(step_id, status);
  {
    MutexLock lock(&mu_);
    const auto step = steps_.find(step_id);
    if (step != steps_.end()) ++step->second.aborts;
  }
  kept_.DropStep(step_id);
}

void HostFetcher::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys, const RecvArgs& args,
                            ManyFetchedFn done) {
  if (!AnyWantsDevice(keys, args)) {
    return fetcher_->FetchMany(step_id, keys, args, std::move(done));
  }
  FetchEach(this, step_id, keys, args, std::move(done));
}

void FetchEach(TensorFetcher* fetcher, int64_t step_id, absl::Span<const TensorKey> keys,
               const RecvArgs& args, ManyFetchedFn done) {
  struct Many {
    std::atomic<size_t> left{0};
    std::vector<Received> results;
    ManyFetchedFn done;
  };
  auto many = std::make_shared<Many>();
  many->results.resize(keys.size());
  many->left = keys.size();
  many->done = std::move(done);
  ArgsOfEach each(args);
  for (size_t i = 0; i < keys.size(); ++i) {
    fetcher->Fetch(step_id, keys[i], each.At(i), [many, i](Received&& received) {
      many->results[i] = std::move(received);
      if (many->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      absl::Status first;
      for (const Received& result : many->results) {
        if (first.ok()) first = result.status;
      }
      std::move(many->done)(std::move(first), absl::MakeSpan(many->results));
    });
  }
}

}  // namespace tryst
