#include "rendezvous/selected.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

absl::Status Refused(const TensorKey& key, absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, " of ", key.text(), ": ", why));
}

// Why no part of `tensor` can be copied; OK if it can.
absl::Status CheckMemory(const TensorKey& key, const Tensor& tensor, absl::string_view what) {
  if (!tensor.valid()) return Refused(key, what, "a selection needs a tensor that has memory");
  if (tensor.dtype() == DType::kString) {
    return Refused(key, what, "strings have no bytes that could be selected: send them whole");
  }
  if (tensor.on_host()) return absl::OkStatus();
  return Refused(key, what,
                 "selections are of host memory: copy the selected part of the GPU's memory "
                 "yourself, and leave the selection out");
}

}  // namespace

absl::StatusOr<Tensor> GatherChecked(const Tensor& tensor, const Selection& selection,
                                     uint64_t bytes, Allocator* shared) {
  const TensorShape shape({static_cast<int64_t>(bytes)});
  absl::StatusOr<Tensor> gathered = absl::ResourceExhaustedError("");
  if (shared != nullptr) gathered = shared->AllocateTensor(DType::kUint8, shape);
  if (absl::IsResourceExhausted(gathered.status())) {
    gathered = Tensor::Allocate(DType::kUint8, shape);
  }
  if (!gathered.ok()) return gathered;
  SelectionPlace place;
  Gather(selection, tensor.data(), gathered->mutable_data(), bytes, &place);
  return gathered;
}

absl::StatusOr<Tensor> GatherTensor(const TensorKey& key, const Tensor& tensor,
                                    const Selection& selection, Allocator* shared) {
  absl::Status has = CheckMemory(key, tensor, "Send");
  if (!has.ok()) return has;
  const auto bytes = CheckSelection(selection, tensor.bytes(), SelectionUse::kRead);
  if (!bytes.ok()) return Refused(key, "Send", bytes.status().message());
  if (*bytes > INT64_MAX) return Refused(key, "Send", "the selection has too many bytes");
  return GatherChecked(tensor, selection, *bytes, shared);
}

absl::StatusOr<SelectedDestination> SelectedDestination::Make(const TensorKey& key,
                                                              const Tensor& into,
                                                              const Selection& selection) {
  absl::Status has = CheckMemory(key, into, "The destination");
  if (has.ok() && into.read_only()) {
    has = Refused(key, "The destination", "it is read-only memory");
  }
  if (!has.ok()) return has;
  SelectedDestination made(key, into, OwnSelection(selection));
  const auto bytes = CheckSelection(made.selection_.view(), into.bytes(), SelectionUse::kWrite);
  if (!bytes.ok()) return Refused(key, "The destination", bytes.status().message());
  made.bytes_ = *bytes;
  return made;
}

absl::Status SelectedDestination::Check(const Tensor& tensor) const {
  absl::Status has = CheckMemory(key_, tensor, "The tensor");
  if (!has.ok()) return has;
  if (tensor.bytes() != bytes_) {
    return Refused(key_, "The destination",
                   absl::StrCat("its selection has ", bytes_, " bytes and the tensor has ",
                                tensor.bytes(), ": they must be as many"));
  }
  const auto from = reinterpret_cast<uintptr_t>(tensor.data());
  const auto to = reinterpret_cast<uintptr_t>(into_.data());
  if (bytes_ > 0 && from < to + into_.bytes() && to < from + tensor.bytes()) {
    return Refused(key_, "The destination",
                   "it is memory of the very tensor that was sent: send it with a selection, which "
                   "copies it");
  }
  return absl::OkStatus();
}

void SelectedDestination::Fill(Received* received) const {
  SelectionPlace place;
  Scatter(selection_.view(), received->tensor.data(), into_.mutable_data(), bytes_, &place);
  received->tensor = into_;
}

}  // namespace tryst
