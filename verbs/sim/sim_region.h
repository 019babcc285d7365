#ifndef TRYST_VERBS_SIM_SIM_REGION_H_
#define TRYST_VERBS_SIM_SIM_REGION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "verbs/nic.h"
#include "verbs/sim/memory_guard.h"

namespace tryst {

// One NIC's regions and windows by key, and the only way from a key to memory. Keys
// carry a generation: a key of something gone is refused even when its place in the
// table is taken again.
class KeyTable {
 public:
  // Every key is mixed with `salt`, so that a key of another NIC means nothing here.
  KeyTable(MemoryGuard* guard, uint32_t salt) : guard_(guard), salt_(salt) {}

  uint32_t AddRegion(void* memory, uint64_t bytes, uint32_t access);
  // Noted as a violation while works that name it are outstanding. Its windows die too.
  void RemoveRegion(uint32_t key);
  // The key that opens the region from now on; the same where the NIC was lost before.
  uint32_t RenewRegion(uint32_t key);
  uint32_t AddWindow();  // Unbound: nothing can be reached through its key.
  void RemoveWindow(uint32_t key);
  // The key that the window gets from its next bind, which makes `key` the older one.
  uint32_t NextWindowKey(uint32_t key) const;

  struct Bind {
    uint32_t window_key = 0;  // From NextWindowKey().
    uint32_t region_key = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t access = 0;
    uint32_t queue_pair = 0;  // Only through it can the window be used.
  };
  // False where the specification refuses: bound already, over no region that allows
  // windows, outside it, or allowing more than it does.
  bool BindWindow(const Bind& bind);
  bool InvalidateWindow(uint32_t key);  // False unless bound.

  // The memory at [address, address + bytes), or null when `key` does not reach all of
  // it with every right in `access` from `queue_pair`.
  uint8_t* Resolve(uint32_t key, uint64_t address, uint64_t bytes, uint32_t access,
                   uint32_t queue_pair) const;

  // Counts the works that name a region; unknown keys are ignored.
  void AddUser(uint32_t key);
  void RemoveUser(uint32_t key);

  void Clear();  // The NIC is lost: no key reaches anything any more.
  size_t regions() const { return regions_; }
  uint64_t region_bytes() const { return region_bytes_; }

 private:
  struct Key {
    bool live = false;
    bool window = false;
    uint16_t generation = 1;
    uint32_t access = 0;
    uint32_t users = 0;
    uint32_t queue_pair = 0;  // A window's.
    uint32_t region_key = 0;  // A window's.
    uint64_t bytes = 0;
    uint8_t* memory = nullptr;
  };

  uint32_t Name(uint32_t index) const;
  uint32_t TakeIndex();
  // Null unless the key's generation is the present one.
  const Key* Find(uint32_t key) const;
  Key* Find(uint32_t key);
  static uint32_t Index(uint32_t plain);
  static uint32_t Generation(uint32_t plain);

  MemoryGuard* const guard_;
  const uint32_t salt_;
  std::vector<Key> keys_;
  std::deque<uint32_t> free_;  // The longest unused first.
  size_t regions_ = 0;
  uint64_t region_bytes_ = 0;
};

class SimNic;

class SimRegion final : public Region {
 public:
  SimRegion(SimNic* nic, void* memory, uint64_t bytes, uint32_t access);
  ~SimRegion() override;
  uint64_t address() const override { return reinterpret_cast<uint64_t>(memory_); }
  uint64_t bytes() const override { return bytes_; }
  uint32_t local_key() const override { return key_; }
  uint32_t remote_key() const override { return key_; }
  bool RenewRemoteKey() override;

 private:
  SimNic* const nic_;
  void* const memory_;
  const uint64_t bytes_;
  uint32_t key_;
};

class SimWindow final : public Window {
 public:
  explicit SimWindow(SimNic* nic);
  ~SimWindow() override;
  uint32_t remote_key() const override { return key_; }
  void set_remote_key(uint32_t key) { key_ = key; }  // When its bind is posted.

 private:
  SimNic* const nic_;
  uint32_t key_;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SIM_SIM_REGION_H_
