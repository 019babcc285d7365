#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_MEMORY_GUARD_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_MEMORY_GUARD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tryst {

// A second check of every DMA of the simulator, independent of the keys that allowed it. It knows
// the registered memory, and memory that a test declares freed or quarantined. An access that
// breaks a rule is recorded, and not carried out.
class MemoryGuard {
 public:
  // From now on no NIC may touch [address, address + bytes). Ranges may overlap; each Unpoison()
  // takes back one Poison() of the same range.
  void Poison(const void* address, uint64_t bytes);
  void Unpoison(const void* address, uint64_t bytes);

  void Registered(const void* address, uint64_t bytes, bool writable);
  void Deregistered(const void* address, uint64_t bytes, bool writable);
  // Whether a region covers any of it.
  bool AnyRegistered(const void* address, uint64_t bytes) const {
    return readable_.Any(address, bytes);
  }

  // Whether a NIC may read or write there now. If not, a violation is recorded with `who`, the
  // number of the queue pair.
  bool MayRead(const void* address, uint64_t bytes, uint32_t who);
  bool MayWrite(const void* address, uint64_t bytes, uint32_t who);

  void Violation(std::string text);
  // The violations so far, in order: all are counted, the first kMaxTexts described.
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t violation_count() const { return violation_count_; }

  static constexpr size_t kMaxTexts = 64;

 private:
  using Address = uintptr_t;

  // Counts how often each byte was added. Each entry of the map holds the count for all bytes from
  // its address up to the next entry.
  class Levels {
   public:
    void Add(const void* address, uint64_t bytes);
    bool Remove(const void* address, uint64_t bytes);  // False: some of it was not there.
    bool Any(const void* address, uint64_t bytes) const;
    bool All(const void* address, uint64_t bytes) const;

   private:
    using Map = std::map<Address, uint32_t>;
    Map::iterator Split(Address at);
    Map::const_iterator At(Address at) const;  // The range that holds it; end(): none.
    Map from_;
  };

  Levels poisoned_;
  Levels readable_;
  Levels writable_;
  std::vector<std::string> violations_;
  uint64_t violation_count_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_MEMORY_GUARD_H_
