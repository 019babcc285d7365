#ifndef TRYST_PLUGINS_NIXL_MEMORY_H_
#define TRYST_PLUGINS_NIXL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "plugins/nixl/handles.h"
#include "plugins/nixl/records.h"

namespace tryst::nixl {

// Receives that end together, and whose end is waited for.
using Group = std::shared_ptr<tryst_group>;
absl::StatusOr<Group> MakeGroup();

// Memory of this agent's that is registered: peers fetch of it by a region, and what we fetch for
// transfers lands in it. Thread-safe.
class OwnMemory {
 public:
  static absl::StatusOr<std::shared_ptr<OwnMemory>> Open(tryst_server* server, uint64_t id,
                                                         uintptr_t address, uint64_t bytes);
  // When it returns nothing reads or writes the memory any more; no peer can delay that for longer
  // than a second. What lands here is cancelled.
  void Close();

  // Receives of the group are to land here. False: it is closed.
  bool Enter(const Group& group);
  void Leave(const Group& group);
  // This process copies from here, or to here, until EndCopy(). False: it is closed.
  bool BeginCopy();
  void EndCopy();

  bool Has(uintptr_t address, uint64_t bytes) const {
    return address >= address_ && bytes <= bytes_ && address - address_ <= bytes_ - bytes;
  }
  uint64_t id() const { return id_; }
  uintptr_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  const tryst_tensor* tensor() const { return tensor_.get(); }

 private:
  OwnMemory(uint64_t id, uintptr_t address, uint64_t bytes)
      : id_(id), address_(address), bytes_(bytes) {}

  const uint64_t id_;
  const uintptr_t address_;
  const uint64_t bytes_;
  Owned<tryst_tensor> tensor_;
  Owned<tryst_region> region_;
  Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::multiset<Group> landing_ ABSL_GUARDED_BY(mu_);
  CondVar copied_;
  size_t copies_ ABSL_GUARDED_BY(mu_) = 0;  // That are under way.
};

// All of it, by number.
class Memories {
 public:
  absl::StatusOr<std::shared_ptr<OwnMemory>> Open(tryst_server* server, uintptr_t address,
                                                  uint64_t bytes);
  std::shared_ptr<OwnMemory> Find(uint64_t id) const;
  void Close(uint64_t id);
  void CloseAll();

 private:
  mutable Mutex mu_;
  std::map<uint64_t, std::shared_ptr<OwnMemory>> open_ ABSL_GUARDED_BY(mu_);
};

// What the agent keeps for us.
struct OwnMemoryHandle final : abi::MemoryHandle {
  explicit OwnMemoryHandle(std::shared_ptr<OwnMemory> memory)
      : MemoryHandle(true), memory(std::move(memory)) {}
  const std::shared_ptr<OwnMemory> memory;
};
struct RemoteMemoryHandle final : abi::MemoryHandle {
  RemoteMemoryHandle(uint64_t id, uintptr_t address, uint64_t bytes)
      : MemoryHandle(false), id(id), address(address), bytes(bytes) {}
  const uint64_t id;
  const uintptr_t address;
  const uint64_t bytes;
};

}  // namespace tryst::nixl

#endif  // TRYST_PLUGINS_NIXL_MEMORY_H_
