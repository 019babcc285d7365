#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_REGION_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_REGION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "tests/doubles/sim_nic/memory_guard.h"
#include "verbs/nic.h"

namespace tryst {

// One NIC's regions by key, and the only access from a key to memory. Keys carry a
// generation, so the key of something that is gone is refused even when its slot is reused.
class KeyTable {
 public:
  // Every key is mixed with `salt`, so that a key of another NIC is not valid here.
  KeyTable(MemoryGuard* guard, uint32_t salt) : guard_(guard), salt_(salt) {}

  uint32_t AddRegion(void* memory, uint64_t bytes, uint32_t access);
  // It is a violation if works that name it are outstanding.
  void RemoveRegion(uint32_t key);
  // The key that opens the region from now on; the same key if the NIC was lost before.
  uint32_t RenewRegion(uint32_t key);

  // The memory at [address, address + bytes); null: `key` does not reach all of it with every right
  // in `access`.
  uint8_t* Resolve(uint32_t key, uint64_t address, uint64_t bytes, uint32_t access) const;

  // Counts the works that name a region; unknown keys are ignored.
  void AddUser(uint32_t key);
  void RemoveUser(uint32_t key);

  void Clear();  // The NIC is lost, so no key reaches anything any more.
  size_t regions() const { return regions_; }
  uint64_t region_bytes() const { return region_bytes_; }

 private:
  struct Key {
    bool live = false;
    uint16_t generation = 1;
    uint32_t access = 0;
    uint32_t users = 0;
    uint64_t bytes = 0;
    uint8_t* memory = nullptr;
  };

  uint32_t Name(uint32_t index) const;
  uint32_t TakeIndex();
  // Null: the key's generation is not the present one.
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

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_REGION_H_
