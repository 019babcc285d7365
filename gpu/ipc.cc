#include "gpu/ipc.h"

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {

namespace {

std::atomic<uint64_t> forgotten_count{0};

std::string ChunksKey(const std::string& exporter, const IpcReference& reference) {
  return absl::StrCat(exporter, ";chunks;", reference.allocation_id);
}

// Whether memory that was mapped is no longer there: other chunks lie in its place.
bool WasReplaced(cuda::Address there, const std::vector<MemoryChunk>& mapped, cuda::Address at,
                 absl::Span<const OfferedChunk> anew) {
  size_t next = 0;
  for (const MemoryChunk& chunk : mapped) {
    while (next < anew.size() && at + anew[next].chunk.bytes <= there) {
      at += anew[next++].chunk.bytes;
    }
    if (next == anew.size()) return false;
    const bool overlap = at < there + chunk.bytes;
    if (overlap && !(at == there && anew[next].chunk == chunk)) return true;
    there += chunk.bytes;
  }
  return false;
}

}  // namespace

absl::StatusOr<IpcReference> IpcExporter::Export(cuda::Address address, uint64_t bytes) {
  absl::Status status = gpu_->Use();
  if (!status.ok()) return status;
  const CudaDriver& driver = gpu_->driver();
  uint64_t id = 0;
  status = driver.Check("cuPointerGetAttribute",
                        gpu_->calls().cuPointerGetAttribute(&id, cuda::kPointerBufferId, address));
  if (!status.ok()) return status;
  if (virtual_.contains(id)) return ExportChunks(id, address, bytes);
  auto found = by_allocation_.find(id);
  if (found == by_allocation_.end()) {
    cuda::Address base = 0;
    size_t allocation_bytes = 0;
    status = driver.Check("cuMemGetAddressRange",
                          gpu_->calls().cuMemGetAddressRange_v2(&base, &allocation_bytes, address));
    if (!status.ok()) return status;
    auto has_handle = Remember(id, base, allocation_bytes);
    if (!has_handle.ok()) return has_handle.status();
    if (!*has_handle) return ExportChunks(id, address, bytes);
    found = by_allocation_.find(id);
  }
  IpcReference reference = found->second;
  reference.offset = address - reference.allocation_at;
  if (bytes > reference.allocation_bytes - reference.offset) {
    return absl::InternalError(absl::StrCat("a GPU's tensor of ", bytes,
                                            " bytes reaches beyond its allocation of ",
                                            reference.allocation_bytes));
  }
  return reference;
}

// An allocation that is new to us. False: it is a chunk of virtual memory.
absl::StatusOr<bool> IpcExporter::Remember(uint64_t id, cuda::Address base, uint64_t bytes) {
  IpcReference reference;
  // Asked first: a call that fails is what tools for finding faults report.
  int has_handle = 1;
  if (gpu_->calls().cuPointerGetAttribute(&has_handle, cuda::kPointerHasIpcHandle, base) !=
      cuda::kSuccess) {
    has_handle = 1;  // An old driver.
  }
  const cuda::Result result = has_handle == 0
                                  ? cuda::kInvalidValue
                                  : gpu_->calls().cuIpcGetMemHandle(&reference.handle, base);
  if (result == cuda::kSuccess) {
    reference.allocation_id = id;
    reference.allocation_bytes = bytes;
    reference.allocation_at = base;
    if (by_allocation_.size() >= kMost) by_allocation_.clear();
    by_allocation_.emplace(id, reference);
    return true;
  }
  void* pool = nullptr;
  if (gpu_->calls().cuPointerGetAttribute(&pool, cuda::kPointerPool, base) == cuda::kSuccess &&
      pool != nullptr) {
    return absl::UnimplementedError(
        "this GPU memory comes from a pool (cudaMallocAsync), which cannot be shared safely: "
        "allocate it with cudaMalloc");
  }
  if (chunks_.IsVirtual(base)) return false;
  return absl::UnimplementedError(
      absl::StrCat("this GPU memory cannot be shared with other processes (cuIpcGetMemHandle): ",
                   gpu_->driver().Check("cuIpcGetMemHandle", result).message()));
}

absl::StatusOr<IpcReference> IpcExporter::ExportChunks(uint64_t id, cuda::Address address,
                                                       uint64_t bytes) {
  auto layout = chunks_.Describe(address, bytes);
  if (!layout.ok()) return layout.status();
  if (virtual_.size() >= kMost) virtual_.clear();
  virtual_.insert(id);
  IpcReference reference;
  reference.chunks = static_cast<uint32_t>((*layout)->chunks.size());
  reference.allocation_id = (*layout)->id;
  reference.allocation_bytes = (*layout)->bytes;
  reference.allocation_at = (*layout)->base;
  reference.offset = address - (*layout)->base;
  return reference;
}

void IpcExporter::Forget() {
  by_allocation_.clear();
  virtual_.clear();
  forgotten_count.fetch_add(1);
}

uint64_t IpcExporter::forgotten() { return forgotten_count.load(std::memory_order_relaxed); }

IpcMappings::~IpcMappings() {
  TRYST_CHECK(mappings_.size() == idle_.size() + idle_windows_.size())
      << "a peer's memory is still in use";
  ForgetAll();
}

size_t IpcMappings::ForgetAll() {
  const size_t before = mappings_.size();
  while (!idle_.empty()) Unmap(idle_.front());
  while (!idle_windows_.empty()) Unmap(idle_windows_.front());
  return before - mappings_.size();
}

absl::StatusOr<IpcMappings::Mapping*> IpcMappings::Open(const std::string& exporter,
                                                        const IpcReference& reference) {
  if (last_ != nullptr && !last_->is_window() && last_->id_ == reference.allocation_id &&
      last_->exporter_ == exporter &&
      memcmp(last_->handle_.bytes, reference.handle.bytes, sizeof(reference.handle.bytes)) == 0) {
    const absl::Status inside = CheckInside(*last_, reference);
    return inside.ok() ? absl::StatusOr<Mapping*>(Use(last_)) : inside;
  }
  std::string key =
      absl::StrCat(exporter, ";", reference.allocation_id, ";",
                   absl::string_view(reinterpret_cast<const char*>(reference.handle.bytes),
                                     sizeof(reference.handle.bytes)));
  auto found = mappings_.find(key);
  if (found == mappings_.end()) {
    absl::Status status = gpu_->Use();
    if (!status.ok()) return status;
    UnmapFreed(exporter, reference, {});
    auto made = std::make_unique<Mapping>();
    status = MapAllocation(exporter, reference, made.get());
    if (!status.ok()) return status;
    made->key_ = std::move(key);
    made->handle_ = reference.handle;
    return Use(Keep(std::move(made), exporter, reference));
  }
  const absl::Status inside = CheckInside(*found->second, reference);
  return inside.ok() ? absl::StatusOr<Mapping*>(Use(found->second.get())) : inside;
}

absl::Status IpcMappings::CheckInside(const Mapping& mapping, const IpcReference& reference) {
  if (reference.allocation_bytes <= mapping.mapped_bytes_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the producer broke the protocol: it says that an allocation of GPU memory has ",
      reference.allocation_bytes, " bytes, and its handle maps ", mapping.mapped_bytes_));
}

absl::Status IpcMappings::MapAllocation(const std::string& exporter, const IpcReference& reference,
                                        Mapping* mapping) {
  const cuda::Calls& calls = gpu_->calls();
  cuda::Result result =
      calls.cuIpcOpenMemHandle_v2(&mapping->base_, reference.handle, cuda::kIpcLazyPeerAccess);
  if (result == cuda::kAlreadyMapped) {
    // We have this memory mapped already, under an earlier handle of the exporter's. Drop that
    // mapping and try again.
    Forget(exporter);
    result =
        calls.cuIpcOpenMemHandle_v2(&mapping->base_, reference.handle, cuda::kIpcLazyPeerAccess);
  }
  if (result != cuda::kSuccess) {
    const absl::Status status = gpu_->driver().Check("cuIpcOpenMemHandle", result);
    return absl::IsUnimplemented(status) ? status : absl::UnavailableError(status.message());
  }
  cuda::Address begin = 0;
  size_t bytes = 0;
  absl::Status status = gpu_->driver().Check(
      "cuMemGetAddressRange", calls.cuMemGetAddressRange_v2(&begin, &bytes, mapping->base_));
  if (status.ok()) {
    mapping->mapped_bytes_ = begin + bytes - mapping->base_;
    status = CheckInside(*mapping, reference);
  } else {
    status = absl::UnavailableError(status.message());
  }
  if (!status.ok()) calls.cuIpcCloseMemHandle(mapping->base_);
  return status;
}

IpcMappings::Mapping* IpcMappings::Keep(std::unique_ptr<Mapping> made, const std::string& exporter,
                                        const IpcReference& reference) {
  Mapping* const mapping = made.get();
  mapping->there_ = reference.allocation_at;
  mapping->bytes_ = reference.allocation_bytes;
  mapping->exporter_ = exporter;
  mapping->id_ = reference.allocation_id;
  std::list<Mapping*>& idle = IdleOf(*mapping);
  mapping->idle_ = idle.insert(idle.end(), mapping);
  mappings_.emplace(mapping->key_, std::move(made));
  return mapping;
}

IpcMappings::Mapping* IpcMappings::FindChunks(const std::string& exporter,
                                              const IpcReference& reference) {
  const bool is_last = last_ != nullptr && last_->is_window() &&
                       last_->id_ == reference.allocation_id && last_->exporter_ == exporter;
  if (!is_last) {
    auto found = mappings_.find(ChunksKey(exporter, reference));
    if (found == mappings_.end()) return nullptr;
    last_ = found->second.get();
  }
  // A name stands for one layout; who gives two the same is refused, and no bytes are read.
  if (last_->bytes_ != reference.allocation_bytes || last_->there_ != reference.allocation_at) {
    return nullptr;
  }
  return Use(last_);
}

absl::StatusOr<IpcMappings::Mapping*> IpcMappings::OpenChunks(
    const std::string& exporter, const IpcReference& reference,
    absl::Span<const OfferedChunk> chunks) {
  if (Mapping* there = FindChunks(exporter, reference)) return there;
  uint64_t bytes = 0;
  for (const OfferedChunk& offered : chunks) bytes += offered.chunk.bytes;
  std::string key = ChunksKey(exporter, reference);
  if (chunks.size() != reference.chunks || bytes != reference.allocation_bytes ||
      mappings_.count(key) != 0) {
    return absl::DataLossError(
        "the producer broke the protocol: it sent other pieces of GPU memory than it had named");
  }
  UnmapFreed(exporter, reference, chunks);
  auto window = imports_.Map(exporter, chunks);
  if (!window.ok()) return window.status();
  auto made = std::make_unique<Mapping>();
  made->key_ = std::move(key);
  made->window_ = *std::move(window);
  made->base_ = made->window_->base();
  return Use(Keep(std::move(made), exporter, reference));
}

IpcMappings::Mapping* IpcMappings::Use(Mapping* mapping) {
  if (mapping->users_++ == 0) IdleOf(*mapping).erase(mapping->idle_);
  last_ = mapping;
  return mapping;
}

void IpcMappings::Close(Mapping* mapping) {
  if (--mapping->users_ > 0) return;
  std::list<Mapping*>& idle = IdleOf(*mapping);
  mapping->idle_ = idle.insert(idle.end(), mapping);
  const size_t most = mapping->is_window() ? most_idle_ * kWindowsPerMapping : most_idle_;
  while (idle.size() > most) Unmap(idle.front());
}

void IpcMappings::Forget(const std::string& exporter) {
  for (std::list<Mapping*>* idle : {&idle_, &idle_windows_}) {
    for (auto it = idle->begin(); it != idle->end();) {
      Mapping* mapping = *it++;
      if (mapping->exporter_ == exporter) Unmap(mapping);
    }
  }
}

// Two allocations do not lie at one place: the earlier one was freed, and its mapping would be
// in the way of the later one's. Windows may show the same chunks.
void IpcMappings::UnmapFreed(const std::string& exporter, const IpcReference& anew,
                             absl::Span<const OfferedChunk> chunks) {
  for (std::list<Mapping*>* idle : {&idle_, &idle_windows_}) {
    for (auto it = idle->begin(); it != idle->end();) {
      Mapping* mapping = *it++;
      const bool overlap = mapping->there_ < anew.allocation_at + anew.allocation_bytes &&
                           anew.allocation_at < mapping->there_ + mapping->bytes_;
      if (!overlap || mapping->exporter_ != exporter) continue;
      const bool both = mapping->is_window() && !chunks.empty();
      if (both &&
          !WasReplaced(mapping->there_, mapping->window_->chunks(), anew.allocation_at, chunks)) {
        continue;
      }
      Unmap(mapping);
    }
  }
}

void IpcMappings::Unmap(Mapping* mapping) {
  IdleOf(*mapping).erase(mapping->idle_);
  if (last_ == mapping) last_ = nullptr;
  if (!mapping->is_window() && gpu_->Use().ok()) {
    gpu_->calls().cuIpcCloseMemHandle(mapping->base_);
  }
  const std::string key = mapping->key_;
  mappings_.erase(key);
}

}  // namespace tryst
