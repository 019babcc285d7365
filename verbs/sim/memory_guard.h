#ifndef TRYST_VERBS_SIM_MEMORY_GUARD_H_
#define TRYST_VERBS_SIM_MEMORY_GUARD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tryst {

// The second book that every DMA of the simulator is checked against, kept apart from
// the keys that allowed it: registered memory, and memory which a test declares freed
// or quarantined. What breaks a rule is noted and not carried out.
class MemoryGuard {
 public:
  // From now on no NIC may touch [address, address + bytes). Ranges may overlap; each
  // Unpoison() takes back one Poison() of the same range.
  void Poison(const void* address, uint64_t bytes);
  void Unpoison(const void* address, uint64_t bytes);

  void Registered(const void* address, uint64_t bytes, bool writable);
  void Deregistered(const void* address, uint64_t bytes, bool writable);
  // Whether a region lies over any of it.
  bool AnyRegistered(const void* address, uint64_t bytes) const {
    return readable_.Any(address, bytes);
  }

  // Whether a NIC may read or write there now. If not, a violation is noted with who
  // was to do it, a queue pair of the world.
  bool MayRead(const void* address, uint64_t bytes, uint32_t who);
  bool MayWrite(const void* address, uint64_t bytes, uint32_t who);

  void Violation(std::string text);
  // What was broken so far, in order: all counted, the first kMaxTexts in words.
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t violation_count() const { return violation_count_; }

  static constexpr size_t kMaxTexts = 64;

 private:
  using Address = uintptr_t;

  // How often each byte was entered: a level from each key to the next one.
  class Levels {
   public:
    void Add(const void* address, uint64_t bytes);
    bool Remove(const void* address, uint64_t bytes);  // False: some of it was not there.
    bool Any(const void* address, uint64_t bytes) const;
    bool All(const void* address, uint64_t bytes) const;

   private:
    using Map = std::map<Address, uint32_t>;
    Map::iterator Split(Address at);
    Map::const_iterator At(Address at) const;  // The piece that holds it; end() for none.
    Map from_;
  };

  Levels poisoned_;
  Levels readable_;
  Levels writable_;
  std::vector<std::string> violations_;
  uint64_t violation_count_ = 0;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SIM_MEMORY_GUARD_H_
