#include "rendezvous/device_handover.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

bool WantedOnHost(const TensorKey& key, const RecvArgs& recv_args) {
  return recv_args.alloc_attrs.on_host || key.dst().type == "CPU";
}

// The memory that `tensor` is copied into, and the device context that copies. Both are empty when
// the tensor is shared.
struct Plan {
  std::shared_ptr<DeviceContext> copier;
  Tensor into;
};

absl::StatusOr<Plan> PlanCopy(const TensorKey& key, const RecvArgs& recv_args,
                              const Received& received) {
  const Tensor& tensor = received.tensor;
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
        absl::StrCat("A tensor of strings cannot be copied to a device; key: ", key.text()));
  }
  // The device side copies, because it knows its stream. Of two devices the receiver does.
  const std::shared_ptr<DeviceContext>& copier =
      !to_host && recv_args.device_context != nullptr ? recv_args.device_context
      : received.send_context != nullptr              ? received.send_context
                                                      : recv_args.device_context;
  if (copier == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("The tensor must be copied to or from a GPU, and neither Send nor the receive "
                     "gave a device context (SendArgs, RecvArgs): ",
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
  Executor* executor;
  std::shared_ptr<DeviceContext> receiver;  // Outlives the wait.
  Received received;
  Plan plan;
};

// On the receiver's executor. Whoever has waited must not wait for room there.
void End(std::unique_ptr<Handover> handover, absl::Status status) {
  if (!status.ok())
    return FailReceive(std::move(status), handover->executor, std::move(handover->done));
  EndReceive(handover->executor, std::move(handover->received), std::move(handover->done));
}

void Copy(std::unique_ptr<Handover> handover, absl::Status sent) {
  if (!sent.ok()) return End(std::move(handover), std::move(sent));
  // Held here, too: the end of the copy may be told on another thread before this call returns.
  const std::shared_ptr<DeviceContext> copier = handover->plan.copier;
  const Tensor from = handover->received.tensor;
  const Tensor into = handover->plan.into;
  copier->StartCopy(from, into,
                    [handover = std::move(handover), into](absl::Status copied) mutable {
                      handover->received.tensor = into;
                      End(std::move(handover), std::move(copied));
                    });
}

}  // namespace

bool MayNeedCopy(const TensorKey& key, const RecvArgs& recv_args) {
  const bool from_cpu = key.src_device().empty() || key.src().type == "CPU";
  return !from_cpu || !WantedOnHost(key, recv_args);
}

DoneFn CopyToReceiver(const TensorKey& key, const RecvArgs& recv_args, DoneFn done) {
  return [key, recv_args, done = std::move(done)](Received&& received) mutable {
    if (!received.status.ok() || received.is_dead) return std::move(done)(std::move(received));
    absl::StatusOr<Plan> plan = PlanCopy(key, recv_args, received);
    if (!plan.ok()) return FailReceive(plan.status(), nullptr, std::move(done));
    const std::shared_ptr<DeviceContext> sender = received.send_context;
    const bool waits =
        !received.tensor.space().host_readable() && sender != nullptr && plan->copier != sender;
    if (plan->copier == nullptr && !waits) return std::move(done)(std::move(received));
    auto handover = std::make_unique<Handover>(Handover{std::move(done), recv_args.executor,
                                                        recv_args.device_context,
                                                        std::move(received), *std::move(plan)});
    if (!waits) return Copy(std::move(handover), absl::OkStatus());
    if (handover->plan.copier != nullptr) {
      return sender->WhenSent(nullptr, [handover = std::move(handover)](absl::Status sent) mutable {
        Copy(std::move(handover), std::move(sent));
      });
    }
    const DeviceContext* const receiver = handover->receiver.get();
    sender->WhenSent(receiver, [handover = std::move(handover)](absl::Status sent) mutable {
      End(std::move(handover), std::move(sent));
    });
  };
}

}  // namespace tryst
