#include "server/c/handles.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace c {

int ForkCount() {
  static std::atomic<int> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

tryst_status* Give(const absl::Status& status) {
  if (status.ok()) return nullptr;
  return new tryst_status{status, std::string(status.message())};
}

tryst_status* GiveTensor(absl::StatusOr<Tensor> made, tryst_tensor** tensor, bool shared) {
  *tensor = made.ok() ? new tryst_tensor{*std::move(made), shared} : nullptr;
  return Give(made.status());
}

char* GiveText(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

namespace {

std::string Describe(const Tensor& tensor) {
  return absl::StrCat(DTypeName(tensor.dtype()), tensor.shape().ToString());
}

absl::Status Misfit(const TensorKey& key, const Tensor& into, const Tensor& tensor) {
  if (tensor.dtype() != into.dtype() || tensor.shape() != into.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'into' is ", Describe(into), " and the tensor is ", Describe(tensor),
                     ": receive it again with the right one, or without; key ", key.text()));
  }
  if (!tensor.on_host() || !into.on_host()) {
    return absl::UnimplementedError(
        absl::StrCat("the tensor or 'into' is in a device's memory, and one worker sent it to "
                     "itself: receive it without 'into'; key ",
                     key.text()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace c
}  // namespace tryst

absl::Status tryst_server::Usable() const {
  if (forks == tryst::c::ForkCount()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the server was made before a fork, and its threads are the parent's: fork first and create "
      "servers afterwards, or start the child by exec (in Python: multiprocessing's \"spawn\")");
}

absl::StatusOr<std::shared_ptr<tryst::Rendezvous>> tryst_server::Step(int64_t step) {
  absl::Status usable = Usable();
  if (!usable.ok()) return usable;
  if (server->steps() == nullptr) {
    return absl::FailedPreconditionError("the server has not started");
  }
  return server->steps()->StartStep(step);
}

absl::StatusOr<tryst::Tensor> tryst_server::Fill(int64_t step, const tryst::TensorKey& key,
                                                 const tryst::Tensor& into, uint64_t turn,
                                                 tryst::Received got) {
  if (!into.valid() || got.is_dead) return std::move(got.tensor);
  // The channel has filled the destination, or the sender's memory is the destination.
  const bool is_there = got.tensor.data() == into.data() && got.tensor.dtype() == into.dtype() &&
                        got.tensor.shape() == into.shape();
  if (is_there) return into;
  const absl::Status misfit = tryst::c::Misfit(key, into, got.tensor);
  if (misfit.ok()) {
    if (into.bytes() != 0) std::memmove(into.mutable_data(), got.tensor.data(), into.bytes());
    return into;
  }
  tryst::Taken taken;
  taken.tensor = std::move(got.tensor);
  taken.send_args.device_context = std::move(got.send_context);
  taken.send_args.alloc_attrs = got.send_attrs;
  taken.turn = turn;
  server->steps()->GiveBack(step, key, std::move(taken));
  return misfit;
}
