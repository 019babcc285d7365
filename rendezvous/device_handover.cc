#include "rendezvous/device_handover.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

bool WantedOnHost(const TensorKey& key, const Args& recv_args) {
  return recv_args.alloc_attrs.on_host || key.dst().type == "CPU";
}

// The memory that `tensor` is copied into, and the device context that copies. Both are empty when
// the tensor is shared.
struct Plan {
  std::shared_ptr<DeviceContext> copier;
  Tensor into;
};

absl::StatusOr<Plan> PlanCopy(const TensorKey& key, const Args& send_args, const Args& recv_args,
                              const Tensor& tensor) {
  const bool on_host = tensor.space().host_readable();
  const bool to_host = WantedOnHost(key, recv_args);
  const bool same_device = key.src_device().empty() || key.src_device() == key.dst_device();
  if (on_host == to_host && (on_host || same_device)) return Plan();
  if (tensor.dtype() == DType::kString) {
    return absl::InvalidArgumentError(
        absl::StrCat("A string tensor cannot go to a device: ", key.text()));
  }
  // The device side copies, because it knows its stream. Of two devices the receiver does.
  const std::shared_ptr<DeviceContext>& copier =
      !to_host && recv_args.device_context != nullptr ? recv_args.device_context
      : send_args.device_context != nullptr           ? send_args.device_context
                                                      : recv_args.device_context;
  if (copier == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("No device context to copy by: ", key.text()));
  }
  if (recv_args.destination.valid()) {
    if (recv_args.destination.dtype() != tensor.dtype() ||
        recv_args.destination.shape() != tensor.shape()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The destination of ", key.text(), " is ", DTypeName(recv_args.destination.dtype()),
          recv_args.destination.shape().ToString(), ", the tensor is ", DTypeName(tensor.dtype()),
          tensor.shape().ToString()));
    }
    return Plan{copier, recv_args.destination};
  }
  AllocatorAttributes attributes = recv_args.alloc_attrs;
  attributes.on_host = to_host;
  absl::StatusOr<Tensor> into = copier->Allocate(tensor.dtype(), tensor.shape(), attributes);
  if (!into.ok()) return into.status();
  return Plan{copier, *std::move(into)};
}

// What the callback of the copy needs, kept while the copy runs.
struct Copying {
  DoneFn done;
  Args send_args;
  Args recv_args;
  Tensor into;
  absl::Status status;
};

void EndCopy(std::unique_ptr<Copying> copying) {
  Copying& c = *copying;
  Tensor result = c.status.ok() ? std::move(c.into) : Tensor();
  std::move(c.done)(std::move(c.status), c.send_args, c.recv_args, std::move(result), false);
}

}  // namespace

bool MayNeedCopy(const TensorKey& key, const Args& recv_args) {
  const bool from_cpu = key.src_device().empty() || key.src().type == "CPU";
  return !from_cpu || !WantedOnHost(key, recv_args);
}

DoneFn CopyToReceiver(const TensorKey& key, DoneFn done) {
  return [key, done = std::move(done)](absl::Status status, const Args& send_args,
                                       const Args& recv_args, Tensor tensor, bool is_dead) mutable {
    if (!status.ok() || is_dead) {
      std::move(done)(std::move(status), send_args, recv_args, std::move(tensor), is_dead);
      return;
    }
    absl::StatusOr<Plan> plan = PlanCopy(key, send_args, recv_args, tensor);
    if (!plan.ok()) {
      std::move(done)(plan.status(), Args(), recv_args, Tensor(), false);
      return;
    }
    if (plan->copier == nullptr) {
      std::move(done)(std::move(status), send_args, recv_args, std::move(tensor), false);
      return;
    }
    auto copying = std::make_unique<Copying>();
    copying->done = std::move(done);
    copying->send_args = send_args;
    copying->recv_args = recv_args;
    copying->into = plan->into;
    plan->copier->StartCopy(
        tensor, plan->into, [copying = std::move(copying)](absl::Status copied) mutable {
          copying->status = std::move(copied);
          Executor* const executor = copying->recv_args.executor;
          if (executor == nullptr) {
            EndCopy(std::move(copying));
          } else {
            executor->Run(
                [copying = std::move(copying)]() mutable { EndCopy(std::move(copying)); });
          }
        });
  };
}

}  // namespace tryst
