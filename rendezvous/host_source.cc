#include "rendezvous/host_source.h"

#include <memory>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// The sender's context beside what it sent, for a tensor that was copied to the host.
class SentContext final : public DeviceContext {
 public:
  SentContext(Tensor sent, std::shared_ptr<DeviceContext> context)
      : sent_(std::move(sent)), context_(std::move(context)) {}
  const Tensor& sent() const { return sent_; }
  const std::shared_ptr<DeviceContext>& context() const { return context_; }

  absl::StatusOr<Tensor> Allocate(DType dtype, const TensorShape& shape,
                                  const AllocatorAttributes& attributes) override {
    return context_->Allocate(dtype, shape, attributes);
  }
  void StartCopy(const Tensor& from, const Tensor& into,
                 absl::AnyInvocable<void(absl::Status) &&> done) override {
    context_->StartCopy(from, into, std::move(done));
  }

 private:
  const Tensor sent_;
  const std::shared_ptr<DeviceContext> context_;
};

bool IsOnDevice(const Received& taken) { return !taken.tensor.on_host() && !taken.is_dead; }

}  // namespace

void HostSource::Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) {
  source_->Take(step_id, key, args,
                [this, step_id, key, done = std::move(done)](Received&& taken) mutable {
                  if (!IsOnDevice(taken)) return std::move(done)(std::move(taken));
                  Copy(step_id, key, std::move(taken), std::move(done));
                });
}

bool HostSource::TakeHere(int64_t step_id, TensorKey* key, Place* place, Received* taken) {
  if (!source_->TakeHere(step_id, key, place, taken)) return false;
  if (ABSL_PREDICT_TRUE(!IsOnDevice(*taken))) return true;
  source_->GiveBack(step_id, *key, std::exchange(*taken, Received()));  // For Take(), which copies.
  return false;
}

void HostSource::Copy(int64_t step_id, const TensorKey& key, Received&& taken, DoneFn done) {
  if (taken.send_context == nullptr) {
    return Fail(step_id, key, std::move(taken),
                absl::FailedPreconditionError(absl::StrCat(
                    "the producer's program sent a GPU's tensor without a device context, which "
                    "its copy to the host needs: set SendArgs::device_context; key: ",
                    key.text())),
                std::move(done));
  }
  absl::StatusOr<Tensor> host = Tensor::Allocate(taken.tensor.dtype(), taken.tensor.shape());
  if (!host.ok()) {
    return Fail(step_id, key, std::move(taken), host.status(), std::move(done));
  }
  copying_.fetch_add(1, std::memory_order_relaxed);
  // Held here, too: the end of the copy may be told on another thread before this call returns.
  const std::shared_ptr<DeviceContext> context = taken.send_context;
  const Tensor from = taken.tensor;
  context->StartCopy(from, *host,
                     [this, step_id, key, host = *host, taken = std::move(taken),
                      done = std::move(done)](const absl::Status& copied) mutable {
                       if (copied.ok()) {
                         taken.send_context = std::make_shared<SentContext>(
                             std::move(taken.tensor), std::move(taken.send_context));
                         taken.tensor = std::move(host);
                         std::move(done)(std::move(taken));
                       } else {
                         Fail(step_id, key, std::move(taken), copied, std::move(done));
                       }
                       copying_.fetch_sub(1, std::memory_order_release);
                     });
}

// Who fails takes no tensor.
void HostSource::Fail(int64_t step_id, const TensorKey& key, Received&& taken,
                      const absl::Status& why, DoneFn done) {
  source_->GiveBack(step_id, key, std::move(taken));
  FailReceive(why, nullptr, std::move(done));
}

void HostSource::GiveBack(int64_t step_id, const TensorKey& key, Received taken) {
  const auto* copied = dynamic_cast<const SentContext*>(taken.send_context.get());
  if (copied != nullptr) {
    taken.tensor = copied->sent();
    taken.send_context = std::shared_ptr<DeviceContext>(copied->context());
  }
  source_->GiveBack(step_id, key, std::move(taken));
}

}  // namespace tryst
