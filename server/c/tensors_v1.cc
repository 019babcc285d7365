// Version 1 of the C interface: tensors and statuses.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/dlpack.h"
#include "rendezvous/dlpack_abi.h"
#include "server/c/handles.h"
#include "server/c/tryst_v1.h"

namespace {

using tryst::c::Give;
using tryst::c::GiveTensor;
using tryst::c::RefuseNull;
// DLPack 1.0, which the implementation uses.
using Versioned = tryst::dlpack::DLManagedTensorVersioned;
using tryst::dlpack::DLTensor;

// DLPack's layout before 1.0.
struct DLManagedTensor0 {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor0* self);
};
static_assert(sizeof(void*) != 8 || sizeof(DLManagedTensor0) == 64, "DLPack 0.x's layout");

// Each struct shows a tensor of one layout in the other. Its deleter calls the first one's deleter.
struct OldAsNew {
  Versioned managed{};
  DLManagedTensor0* from = nullptr;
};
struct NewAsOld {
  DLManagedTensor0 managed{};
  Versioned* from = nullptr;
};

Versioned* Cast(::DLManagedTensorVersioned* managed) {
  return reinterpret_cast<Versioned*>(managed);
}

bool ReadOnly(const tryst_tensor* tensor) {
  return tensor != nullptr && (tensor->shared || tensor->tensor.read_only());
}

}  // namespace

int tryst_status_is_derived(const tryst_status* status) {
  return status != nullptr && tryst::IsDerived(status->status) ? 1 : 0;
}

int tryst_tensor_is_read_only(const tryst_tensor* tensor) { return ReadOnly(tensor) ? 1 : 0; }

int32_t tryst_tensor_gpu(const tryst_tensor* tensor) {
  if (tensor == nullptr) return -1;
  const tryst::MemorySpace space = tensor->tensor.space();
  return space.host_readable() ? -1 : space.device_ordinal;
}

const char* tryst_dtype_name(int32_t dtype) {
  if (dtype < 0 || dtype > 255) dtype = 0;
  // DTypeName() returns a literal, so it ends with a zero.
  return tryst::DTypeName(static_cast<tryst::DType>(dtype)).data();
}

tryst_status* tryst_tensor_strings(const char* const* texts, const size_t* sizes,
                                   const int64_t* dims, size_t rank, tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(tensor)) return refused;
  *tensor = nullptr;
  const auto shape = tryst::TensorShape::Make(absl::MakeConstSpan(dims, rank));
  if (!shape.ok()) return Give(shape.status());
  if (shape->elements() > 0 && (texts == nullptr || sizes == nullptr)) {
    return Give(absl::InvalidArgumentError("null was given for the strings or their sizes"));
  }
  auto made = tryst::Tensor::Allocate(tryst::DType::kString, *shape);
  if (!made.ok()) return Give(made.status());
  size_t i = 0;
  for (std::string& text : made->mutable_strings()) {
    if (texts[i] == nullptr && sizes[i] > 0) {
      return Give(absl::InvalidArgumentError(absl::StrCat(
          "null was given for string ", i, " (counted from 0), of ", sizes[i], " bytes")));
    }
    if (sizes[i] > 0) text.assign(texts[i], sizes[i]);
    ++i;
  }
  return GiveTensor(std::move(made), tensor);
}

tryst_status* tryst_tensor_string(const tryst_tensor* tensor, size_t i, const char** text,
                                  size_t* size) {
  if (tryst_status* const refused = RefuseNull(tensor, text, size)) return refused;
  *text = nullptr;
  *size = 0;
  if (tensor->tensor.dtype() != tryst::DType::kString) {
    return Give(absl::InvalidArgumentError(absl::StrCat(
        "the tensor holds ", tryst::DTypeName(tensor->tensor.dtype()), ", not strings")));
  }
  const auto strings = tensor->tensor.strings();
  if (i >= strings.size()) {
    return Give(absl::OutOfRangeError(absl::StrCat("there is no string ", i,
                                                   " (counted from 0): the tensor has ",
                                                   strings.size(), " strings")));
  }
  *text = strings[i].data();
  *size = strings[i].size();
  return nullptr;
}

tryst_status* tryst_tensor_from_dlpack(::DLManagedTensorVersioned* managed, tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(tensor)) return refused;
  return GiveTensor(tryst::FromDLPack(Cast(managed)), tensor);
}

tryst_status* tryst_tensor_from_dlpack0(::DLManagedTensor* managed, tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(tensor)) return refused;
  *tensor = nullptr;
  if (managed == nullptr)
    return Give(absl::InvalidArgumentError("null was given for a DLPack tensor"));
  auto wrapped = std::make_unique<OldAsNew>();
  wrapped->from = reinterpret_cast<DLManagedTensor0*>(managed);
  wrapped->managed.version = {tryst::dlpack::kMajorVersion, 0};
  wrapped->managed.manager_ctx = wrapped.get();
  wrapped->managed.dl_tensor = wrapped->from->dl_tensor;
  wrapped->managed.deleter = [](Versioned* self) {
    const std::unique_ptr<OldAsNew> old(static_cast<OldAsNew*>(self->manager_ctx));
    if (old->from->deleter != nullptr) old->from->deleter(old->from);
  };
  auto made = tryst::FromDLPack(&wrapped->managed);
  if (made.ok()) (void)wrapped.release();
  return GiveTensor(std::move(made), tensor);
}

tryst_status* tryst_tensor_to_dlpack(const tryst_tensor* tensor,
                                     ::DLManagedTensorVersioned** managed) {
  if (tryst_status* const refused = RefuseNull(tensor, managed)) return refused;
  *managed = nullptr;
  const auto made = tryst::ToDLPack(tensor->tensor);
  if (!made.ok()) return Give(made.status());
  if (!ReadOnly(tensor)) (*made)->flags &= ~tryst::dlpack::kFlagReadOnly;
  *managed = reinterpret_cast<::DLManagedTensorVersioned*>(*made);
  return nullptr;
}

tryst_status* tryst_tensor_to_dlpack0(const tryst_tensor* tensor, ::DLManagedTensor** managed) {
  if (tryst_status* const refused = RefuseNull(tensor, managed)) return refused;
  *managed = nullptr;
  if (ReadOnly(tensor)) {
    return Give(
        absl::FailedPreconditionError("the tensor is read-only, and DLPack 0.x cannot mark it so: "
                                      "copy the tensor, or call tryst_tensor_to_dlpack()"));
  }
  const auto made = tryst::ToDLPack(tensor->tensor);
  if (!made.ok()) return Give(made.status());
  auto wrapped = std::make_unique<NewAsOld>();
  wrapped->from = *made;
  wrapped->managed.dl_tensor = (*made)->dl_tensor;
  wrapped->managed.manager_ctx = wrapped.get();
  wrapped->managed.deleter = [](DLManagedTensor0* self) {
    const std::unique_ptr<NewAsOld> old(static_cast<NewAsOld*>(self->manager_ctx));
    old->from->deleter(old->from);
  };
  *managed = reinterpret_cast<::DLManagedTensor*>(&wrapped.release()->managed);
  return nullptr;
}

tryst_status* tryst_server_allocate(tryst_server* server, int32_t dtype, const int64_t* dims,
                                    size_t rank, tryst_tensor** tensor) {
  if (tryst_status* const refused = RefuseNull(server, tensor)) return refused;
  *tensor = nullptr;
  const absl::Status usable = server->Usable();
  if (!usable.ok()) return Give(usable);
  const auto shape = tryst::TensorShape::Make(absl::MakeConstSpan(dims, rank));
  if (!shape.ok()) return Give(shape.status());
  const auto type = tryst::c::CheckedType(dtype);
  if (!type.ok()) return Give(type.status());
  tryst::Allocator* const shared = server->server->allocator();
  return GiveTensor(shared == nullptr ? tryst::Tensor::Allocate(*type, *shape)
                                      : shared->AllocateTensor(*type, *shape),
                    tensor);
}
