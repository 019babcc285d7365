#include "server/c/handles.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace c {

absl::Status InTheProcessOf(int forks) {
  if (forks == ForkCount()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the server was made before a fork, and its threads are the parent's: fork first and create "
      "servers afterwards, or start the child by exec (in Python: multiprocessing's \"spawn\")");
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

absl::StatusOr<DType> CheckedType(int dtype) {
  if (dtype < 0 || dtype > 255 || DTypeBytes(static_cast<DType>(dtype)) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(dtype, " is no dtype with elements of a fixed size"));
  }
  return static_cast<DType>(dtype);
}

namespace {

std::string Describe(const Tensor& tensor) {
  return absl::StrCat(DTypeName(tensor.dtype()), tensor.shape().ToString());
}

absl::Status Misfit(const TensorKey& key, const Tensor& into, const Tensor& tensor) {
  if (tensor.dtype() != into.dtype() || tensor.shape() != into.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'into' is ", Describe(into), " and the tensor is ", Describe(tensor),
        ": receive the tensor again without 'into', or into one of its type and shape; key ",
        key.text()));
  }
  if (!tensor.on_host() || !into.on_host()) {
    return absl::UnimplementedError(
        absl::StrCat("the tensor or 'into' is in device memory, and a worker that sends to itself "
                     "cannot copy there: receive without 'into'; key ",
                     key.text()));
  }
  return absl::OkStatus();
}

// Strings are objects: bytes of others cannot be copied over them.
absl::Status CheckInto(const tryst_tensor& into, const TensorKey& key) {
  const bool strings = into.tensor.dtype() == DType::kString;
  if (!strings && !into.shared && !into.tensor.read_only()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      strings ? "'into' holds strings: receive strings without 'into'; key "
              : "'into' is read-only: receive without 'into', or into a copy of it; key ",
      key.text()));
}

}  // namespace

absl::Status CauseOfAbort(int code, const char* message, absl::Status* cause) {
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (code <= 0 || code > kLastCode) {
    return absl::InvalidArgumentError(
        "a step must be aborted with the code of a failure, and OK was given");
  }
  *cause = absl::Status(static_cast<absl::StatusCode>(code), Text(message));
  return absl::OkStatus();
}

absl::StatusOr<Receive> Receive::Make(Server* server, int64_t step, const char* key,
                                      const tryst_tensor* into) {
  auto parsed = TensorKey::Parse(Text(key));
  if (!parsed.ok()) return parsed.status();
  return Of(server, step, *std::move(parsed), into);
}

absl::StatusOr<Receive> Receive::Of(Server* server, int64_t step, TensorKey key,
                                    const tryst_tensor* into) {
  Receive made;
  made.steps = server->steps();
  made.step = step;
  made.key = std::move(key);
  made.is_own = made.key.src_device().empty() || made.key.src().worker == server->worker();
  if (into == nullptr) return made;
  const absl::Status fit = CheckInto(*into, made.key);
  if (!fit.ok()) return fit;
  made.into = into->tensor;
  return made;
}

absl::StatusOr<Tensor> Receive::Fill(Received got) {
  if (!into.valid() || got.is_dead) return std::move(got.tensor);
  // The channel has filled the destination, or the sender's memory is the destination.
  const bool is_there = got.tensor.data() == into.data() && got.tensor.dtype() == into.dtype() &&
                        got.tensor.shape() == into.shape();
  if (is_there) return into;
  const absl::Status misfit = Misfit(key, into, got.tensor);
  if (misfit.ok()) {
    if (into.bytes() != 0) std::memmove(into.mutable_data(), got.tensor.data(), into.bytes());
    return into;
  }
  steps->GiveBack(step, key, std::move(got));
  return misfit;
}

}  // namespace c
}  // namespace tryst

absl::Status tryst_server::Usable() const { return tryst::c::InTheProcessOf(forks); }

absl::StatusOr<std::shared_ptr<tryst::Rendezvous>> tryst_server::Step(int64_t step) {
  absl::Status usable = Usable();
  if (!usable.ok()) return usable;
  if (server->steps() == nullptr) {
    return absl::FailedPreconditionError("the server has not started: start it first");
  }
  return server->steps()->StartStep(step);
}
