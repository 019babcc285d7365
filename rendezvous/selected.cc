#include "rendezvous/selected.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rendezvous/span_digests.h"

namespace tryst {
namespace {

absl::Status Refused(const TensorKey& key, absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, " of ", key.text(), ": ", why));
}

// Why no part of `tensor` can be copied; OK if it can.
absl::Status CheckBytes(const TensorKey& key, const Tensor& tensor, absl::string_view what) {
  if (!tensor.valid()) return Refused(key, what, "a selection needs a tensor that has memory");
  if (tensor.dtype() != DType::kString) return absl::OkStatus();
  return Refused(key, what, "strings have no bytes that could be selected: send them whole");
}

// As CheckBytes(), where `context` is to copy what lies on a device.
absl::Status CheckMemory(const TensorKey& key, const Tensor& tensor, bool digests,
                         DeviceContext* context, absl::string_view what) {
  absl::Status has = CheckBytes(key, tensor, what);
  if (!has.ok() || tensor.on_host()) return has;
  if (digests) {
    return Refused(key, what, "digests of spans are of host memory: leave them out for a GPU's");
  }
  if (context != nullptr && context->selection_copier() != nullptr) return absl::OkStatus();
  return Refused(key, what,
                 "a selection of a GPU's memory needs a device context that copies it: give the "
                 "GPU's stream, or a GpuContext");
}

// The bytes that are sent.
absl::StatusOr<uint64_t> CheckSent(const TensorKey& key, const Tensor& tensor,
                                   const Selection& selection, bool digests,
                                   DeviceContext* context) {
  absl::Status has = CheckMemory(key, tensor, digests, context, "Send");
  if (!has.ok()) return has;
  const auto bytes = CheckSelection(selection, tensor.bytes(), SelectionUse::kRead);
  if (!bytes.ok()) return Refused(key, "Send", bytes.status().message());
  if (*bytes > INT64_MAX / 2) return Refused(key, "Send", "the selection has too many bytes");
  return bytes;
}

}  // namespace

absl::StatusOr<Tensor> GatherChecked(const Tensor& tensor, const Selection& selection,
                                     uint64_t bytes, uint64_t granule, Allocator* shared) {
  const uint64_t all = granule == 0 ? bytes : bytes + TrailerBytes(bytes, granule);
  const TensorShape shape({static_cast<int64_t>(all)});
  absl::StatusOr<Tensor> gathered = absl::ResourceExhaustedError("");
  if (shared != nullptr) gathered = shared->AllocateTensor(DType::kUint8, shape);
  if (absl::IsResourceExhausted(gathered.status())) {
    gathered = Tensor::Allocate(DType::kUint8, shape);
  }
  if (!gathered.ok()) return gathered;
  if (granule == 0) {
    SelectionPlace place;
    Gather(selection, tensor.data(), gathered->mutable_data(), bytes, &place);
  } else {
    GatherDigested(selection, tensor.data(), gathered->mutable_data(), bytes, granule);
  }
  return gathered;
}

absl::StatusOr<Tensor> GatherTensor(const TensorKey& key, const Tensor& tensor,
                                    const Selection& selection, bool digests, Allocator* shared) {
  const auto bytes = CheckSent(key, tensor, selection, digests, nullptr);
  if (!bytes.ok()) return bytes.status();
  return GatherChecked(tensor, selection, *bytes, digests ? GranuleFor(selection, *bytes) : 0,
                       shared);
}

absl::StatusOr<SelectionCopier::Gathered> GatherOnDevice(const TensorKey& key, const Tensor& tensor,
                                                         const Selection& selection, bool digests,
                                                         DeviceContext* context) {
  const auto bytes = CheckSent(key, tensor, selection, digests, context);
  if (!bytes.ok()) return bytes.status();
  return context->selection_copier()->Gather(tensor, selection, *bytes);
}

absl::Status WrongDigests(const TensorKey& key, absl::Span<const uint32_t> spans) {
  constexpr size_t kMostNamed = 8;
  return absl::DataLossError(absl::StrCat(spans.size(), " spans of ", key.text(),
                                          " came with wrong digests, and the others are there: ",
                                          absl::StrJoin(spans.subspan(0, kMostNamed), ", "),
                                          spans.size() > kMostNamed ? ", ..." : "",
                                          ". Make them anew, or fetch them again"));
}

absl::StatusOr<SelectedDestination> SelectedDestination::Make(
    const TensorKey& key, const Tensor& into, const SelectedLanding& landing,
    std::shared_ptr<DeviceContext> context) {
  absl::Status has = CheckMemory(key, into, landing.digests, context.get(), "The destination");
  if (has.ok() && into.read_only()) {
    has = Refused(key, "The destination", "it is read-only memory");
  }
  if (!has.ok()) return has;
  // Before the list is copied: one that is refused costs nobody memory.
  const auto bytes = CheckSelection(landing.selection, into.bytes(), SelectionUse::kWrite);
  if (!bytes.ok()) return Refused(key, "The destination", bytes.status().message());
  SelectedDestination made(key, into, landing, into.on_host() ? nullptr : std::move(context));
  made.bytes_ = *bytes;
  NoneIsThere(landing);
  return made;
}

absl::Status SelectedDestination::Check(const Tensor& tensor) const {
  absl::Status has = CheckBytes(key_, tensor, "The tensor");
  if (!has.ok()) return has;
  if (!on_device() && !tensor.on_host()) {
    return Refused(key_, "The tensor",
                   "it has come into a GPU's memory, for a receive there that it did not fit: "
                   "receive it into a GPU's memory");
  }
  if (digests_ && !HasTrailer(tensor.data(), tensor.bytes(), bytes_)) {
    return Refused(key_, "The destination",
                   absl::StrCat("its selection has ", bytes_,
                                " bytes with digests, and the tensor, "
                                "of ",
                                tensor.bytes(),
                                " bytes, is not that: both ends' selections "
                                "have as many bytes, and both say that they have digests"));
  }
  if (!digests_ && tensor.bytes() != bytes_) {
    return Refused(key_, "The destination",
                   absl::StrCat("its selection has ", bytes_, " bytes and the tensor has ",
                                tensor.bytes(), ": they must be as many"));
  }
  const auto from = reinterpret_cast<uintptr_t>(tensor.data());
  const auto to = reinterpret_cast<uintptr_t>(into_.data());
  if (bytes_ > 0 && tensor.on_host() == into_.on_host() && from < to + into_.bytes() &&
      to < from + tensor.bytes()) {
    return Refused(key_, "The destination",
                   "it is memory of the very tensor that was sent: send it with a selection, which "
                   "copies it");
  }
  return absl::OkStatus();
}

void SelectedDestination::Fill(Received* received) const {
  const Selection selection = selection_.view();
  const void* const dense = received->tensor.data();
  std::vector<ByteSpan> wrong;
  if (digests_) wrong = FindWrong(dense, received->tensor.bytes(), bytes_);
  ScatterExcept(selection, dense, into_.mutable_data(), bytes_, wrong, SelectionPlace());
  const std::vector<uint32_t> failed = SpansIn(selection, into_.bytes(), wrong);
  if (result_ != nullptr && digests_) {
    std::vector<uint32_t> none_is_cut;
    DigestSpans(selection, into_.bytes(), SelectionPlace(), dense, received->tensor.bytes(), bytes_,
                result_->digests.data(), &none_is_cut);
    for (const uint32_t number : failed) result_->digests[number] = 0;
  }
  if (!failed.empty() && !partial_) received->status = WrongDigests(key_, failed);
  received->tensor = received->status.ok() ? into_ : Tensor();
  if (result_ != nullptr) result_->failed = failed;
}

void SelectedDestination::StartFill(Tensor tensor,
                                    absl::AnyInvocable<void(absl::Status, Tensor) &&> done) const {
  const Tensor from = tensor;
  context_->selection_copier()->StartScatter(
      from, into_, selection_.view(),
      [this, tensor = std::move(tensor), done = std::move(done)](absl::Status copied) mutable {
        if (copied.ok()) {
          if (result_ != nullptr) result_->failed.clear();
          tensor = into_;  // What has come goes before `done` runs.
        }
        std::move(done)(std::move(copied), std::move(tensor));
      });
}

}  // namespace tryst
