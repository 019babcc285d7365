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
  // The key names the CPU at both ends, and its sender gave it device memory all the same. So does
  // its receiver get it, unless it says where it wants it.
  const bool is_device_memory = !on_host && same_device;
  if (is_device_memory && !recv_args.alloc_attrs.on_host && !recv_args.destination.valid()) {
    return Plan();
  }
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
        absl::StrCat("The tensor must be copied to or from a GPU, and neither Send nor the receive "
                     "gave a device context (Args::device_context): ",
                     key.text()));
  }
  if (recv_args.destination.valid()) {
    if (recv_args.destination.dtype() != tensor.dtype() ||
        recv_args.destination.shape() != tensor.shape()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The destination of ", key.text(), " is ", DTypeName(recv_args.destination.dtype()),
          recv_args.destination.shape().ToString(), " and the tensor is ",
          DTypeName(tensor.dtype()), tensor.shape().ToString()));
    }
    return Plan{copier, recv_args.destination};
  }
  AllocatorAttributes attributes = recv_args.alloc_attrs;
  attributes.on_host = to_host;
  absl::StatusOr<Tensor> into = copier->Allocate(tensor.dtype(), tensor.shape(), attributes);
  if (!into.ok()) return into.status();
  return Plan{copier, *std::move(into)};
}

// A delivery that waits for the sender's work, and then perhaps for a copy.
struct Handover {
  DoneFn done;
  Args send_args;
  Args recv_args;
  Tensor tensor;
  Plan plan;
};

void Deliver(std::unique_ptr<Handover> handover, absl::Status status, Tensor tensor) {
  Handover& h = *handover;
  if (!status.ok()) tensor = Tensor();
  std::move(h.done)(std::move(status), h.send_args, h.recv_args, std::move(tensor), false);
}

// On the receiver's executor. Whoever has waited must not wait for room there.
void End(std::unique_ptr<Handover> handover, absl::Status status, Tensor tensor) {
  Executor* const executor = handover->recv_args.executor;
  if (executor == nullptr) return Deliver(std::move(handover), std::move(status), tensor);
  executor->RunWithoutWaiting([handover = std::move(handover), status = std::move(status),
                               tensor = std::move(tensor)]() mutable {
    Deliver(std::move(handover), std::move(status), std::move(tensor));
  });
}

void Copy(std::unique_ptr<Handover> handover, absl::Status sent) {
  if (!sent.ok()) return End(std::move(handover), std::move(sent), Tensor());
  // Held here, too: the end of the copy may be told on another thread before this call returns.
  const std::shared_ptr<DeviceContext> copier = handover->plan.copier;
  const Tensor from = handover->tensor;
  const Tensor into = handover->plan.into;
  copier->StartCopy(from, into,
                    [handover = std::move(handover), into](absl::Status copied) mutable {
                      End(std::move(handover), std::move(copied), into);
                    });
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
    const bool waits = !tensor.space().host_readable() && send_args.device_context != nullptr &&
                       plan->copier != send_args.device_context;
    if (plan->copier == nullptr && !waits) {
      std::move(done)(std::move(status), send_args, recv_args, std::move(tensor), false);
      return;
    }
    auto handover = std::make_unique<Handover>(
        Handover{std::move(done), send_args, recv_args, std::move(tensor), *std::move(plan)});
    if (!waits) return Copy(std::move(handover), absl::OkStatus());
    const std::shared_ptr<DeviceContext> sender = send_args.device_context;
    if (handover->plan.copier != nullptr) {
      return sender->WhenSent(nullptr, [handover = std::move(handover)](absl::Status sent) mutable {
        Copy(std::move(handover), std::move(sent));
      });
    }
    const DeviceContext* const receiver = recv_args.device_context.get();
    sender->WhenSent(receiver, [handover = std::move(handover)](absl::Status sent) mutable {
      const Tensor shared = handover->tensor;
      End(std::move(handover), std::move(sent), shared);
    });
  };
}

}  // namespace tryst
