#include "gpu/ipc.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

absl::StatusOr<IpcReference> IpcExporter::Export(cuda::Address address, uint64_t bytes) {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  const CudaDriver& driver = gpu_->driver();
  uint64_t id = 0;
  status = driver.Check("cuPointerGetAttribute",
                        gpu_->calls().cuPointerGetAttribute(&id, cuda::kPointerBufferId, address));
  if (!status.ok()) return status;
  cuda::Address base = 0;
  size_t allocation_bytes = 0;
  status = driver.Check("cuMemGetAddressRange",
                        gpu_->calls().cuMemGetAddressRange_v2(&base, &allocation_bytes, address));
  if (!status.ok()) return status;
  if (address + bytes > base + allocation_bytes) {
    return absl::InternalError(absl::StrCat("a device tensor of ", bytes,
                                            " bytes reaches over the end of its allocation of ",
                                            allocation_bytes));
  }
  auto found = by_allocation_.find(id);
  if (found == by_allocation_.end()) {
    IpcReference reference;
    const cuda::Result result = gpu_->calls().cuIpcGetMemHandle(&reference.handle, base);
    if (result != cuda::kSuccess) {
      return absl::UnimplementedError(
          absl::StrCat("this device memory has no IPC handle: ",
                       driver.Check("cuIpcGetMemHandle", result).message()));
    }
    reference.allocation_id = id;
    reference.allocation_bytes = allocation_bytes;
    reference.allocation_at = base;
    if (by_allocation_.size() >= kMost) by_allocation_.clear();
    found = by_allocation_.emplace(id, reference).first;
  }
  IpcReference reference = found->second;
  reference.offset = address - base;
  return reference;
}

IpcMappings::~IpcMappings() {
  TRYST_CHECK(mappings_.size() == idle_.size()) << "a peer's memory is still in use";
  while (!idle_.empty()) Unmap(idle_.front());
}

absl::StatusOr<IpcMappings::Mapping*> IpcMappings::Open(const std::string& exporter,
                                                        const IpcReference& reference) {
  if (last_ != nullptr && last_->id_ == reference.allocation_id && last_->exporter_ == exporter &&
      memcmp(last_->handle_.bytes, reference.handle.bytes, sizeof(reference.handle.bytes)) == 0) {
    return Use(last_);
  }
  std::string key =
      absl::StrCat(exporter, ";", reference.allocation_id, ";",
                   absl::string_view(reinterpret_cast<const char*>(reference.handle.bytes),
                                     sizeof(reference.handle.bytes)));
  auto found = mappings_.find(key);
  if (found == mappings_.end()) {
    absl::Status status = gpu_->Use();
    if (!status.ok()) return status;
    UnmapFreed(exporter, reference);
    auto made = std::make_unique<Mapping>();
    cuda::Result result = gpu_->calls().cuIpcOpenMemHandle_v2(&made->base_, reference.handle,
                                                              cuda::kIpcLazyPeerAccess);
    if (result == cuda::kAlreadyMapped) {
      // We have this memory mapped already, under an earlier handle of the exporter's. Drop that
      // mapping and try again.
      Forget(exporter);
      result = gpu_->calls().cuIpcOpenMemHandle_v2(&made->base_, reference.handle,
                                                   cuda::kIpcLazyPeerAccess);
    }
    if (result != cuda::kSuccess) {
      status = gpu_->driver().Check("cuIpcOpenMemHandle", result);
      return absl::IsUnimplemented(status) ? status : absl::UnavailableError(status.message());
    }
    made->key_ = key;
    made->there_ = reference.allocation_at;
    made->bytes_ = reference.allocation_bytes;
    made->exporter_ = exporter;
    made->id_ = reference.allocation_id;
    made->handle_ = reference.handle;
    made->idle_ = idle_.insert(idle_.end(), made.get());
    found = mappings_.emplace(std::move(key), std::move(made)).first;
  }
  return Use(found->second.get());
}

IpcMappings::Mapping* IpcMappings::Use(Mapping* mapping) {
  if (mapping->users_++ == 0) idle_.erase(mapping->idle_);
  last_ = mapping;
  return mapping;
}

void IpcMappings::Close(Mapping* mapping) {
  if (--mapping->users_ > 0) return;
  mapping->idle_ = idle_.insert(idle_.end(), mapping);
  while (idle_.size() > most_idle_) Unmap(idle_.front());
}

void IpcMappings::Forget(const std::string& exporter) {
  for (auto it = idle_.begin(); it != idle_.end();) {
    Mapping* mapping = *it++;
    if (mapping->exporter_ == exporter) Unmap(mapping);
  }
}

// Two allocations do not lie at one place: the earlier one was freed, and its mapping would be
// in the way of the later one's.
void IpcMappings::UnmapFreed(const std::string& exporter, const IpcReference& anew) {
  for (auto it = idle_.begin(); it != idle_.end();) {
    Mapping* mapping = *it++;
    const bool overlap = mapping->there_ < anew.allocation_at + anew.allocation_bytes &&
                         anew.allocation_at < mapping->there_ + mapping->bytes_;
    if (overlap && mapping->exporter_ == exporter) Unmap(mapping);
  }
}

void IpcMappings::Unmap(Mapping* mapping) {
  idle_.erase(mapping->idle_);
  if (last_ == mapping) last_ = nullptr;
  if (gpu_->Use().ok()) gpu_->calls().cuIpcCloseMemHandle(mapping->base_);
  mappings_.erase(mapping->key_);
}

}  // namespace tryst
