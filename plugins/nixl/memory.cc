#include "plugins/nixl/memory.h"

#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace tryst::nixl {

absl::StatusOr<Group> MakeGroup() {
  tryst_group* made = nullptr;
  absl::Status status = StatusOf(tryst_group_create(&made));
  if (!status.ok()) return status;
  return Group(made, &tryst_group_free);
}

absl::StatusOr<std::shared_ptr<OwnMemory>> OwnMemory::Open(tryst_server* server, uint64_t id,
                                                           uintptr_t address, uint64_t bytes) {
  if (bytes == 0 || address + bytes < address) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ", bytes, " bytes cannot be registered"));
  }
  std::shared_ptr<OwnMemory> memory(new OwnMemory(id, address, bytes));
  auto tensor = TensorAt(address, bytes);
  if (!tensor.ok()) return tensor.status();
  memory->tensor_ = *std::move(tensor);
  tryst_region* region = nullptr;
  absl::Status status = StatusOf(tryst_region_open(server, RegionName(id).c_str(),
                                                   memory->tensor_.get(), nullptr, 0, &region));
  memory->region_.reset(region);
  if (!status.ok()) return status;
  return memory;
}

void OwnMemory::Close() {
  std::multiset<Group> landing;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    landing = landing_;
    while (copies_ > 0) copied_.Wait(&mu_);
  }
  for (const Group& group : landing) tryst_group_cancel(group.get());
  for (const Group& group : landing) tryst_group_fenced(group.get(), -1);
  tryst_region_close(region_.get(), -1);
}

bool OwnMemory::Enter(const Group& group) {
  MutexLock lock(&mu_);
  if (!closed_) landing_.insert(group);
  return !closed_;
}

void OwnMemory::Leave(const Group& group) {
  MutexLock lock(&mu_);
  const auto found = landing_.find(group);
  if (found != landing_.end()) landing_.erase(found);
}

bool OwnMemory::BeginCopy() {
  MutexLock lock(&mu_);
  if (!closed_) ++copies_;
  return !closed_;
}

void OwnMemory::EndCopy() {
  MutexLock lock(&mu_);
  if (--copies_ == 0) copied_.NotifyAll();
}

absl::StatusOr<std::shared_ptr<OwnMemory>> Memories::Open(tryst_server* server, uintptr_t address,
                                                          uint64_t bytes) {
  // No peer is to find memory that it was not told of.
  absl::BitGen random;
  auto opened = OwnMemory::Open(server, absl::Uniform<uint64_t>(random), address, bytes);
  if (!opened.ok()) return opened;
  MutexLock lock(&mu_);
  open_.emplace((*opened)->id(), *opened);
  return opened;
}

std::shared_ptr<OwnMemory> Memories::Find(uint64_t id) const {
  MutexLock lock(&mu_);
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : found->second;
}

void Memories::Close(uint64_t id) {
  std::shared_ptr<OwnMemory> memory;
  {
    MutexLock lock(&mu_);
    const auto found = open_.find(id);
    if (found == open_.end()) return;
    memory = std::move(found->second);
    open_.erase(found);
  }
  memory->Close();
}

void Memories::CloseAll() {
  std::map<uint64_t, std::shared_ptr<OwnMemory>> all;
  {
    MutexLock lock(&mu_);
    all.swap(open_);
  }
  for (const auto& [id, memory] : all) memory->Close();
}

}  // namespace tryst::nixl
