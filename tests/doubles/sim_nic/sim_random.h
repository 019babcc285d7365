#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_SIM_RANDOM_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_SIM_RANDOM_H_

#include <cstdint>

namespace tryst {

// Random numbers from a seed, equal on every machine and standard library (splitmix64). Not for
// secrets. Whole numbers only, so that no rounding mode can change a run.
class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // 0 .. bound-1; 0 if `bound` is 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

  // low .. high, both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }

  // Draws nothing if the chance is 0, so that what is switched off changes no run.
  bool Chance(uint32_t per_million) { return per_million != 0 && Below(1000000) < per_million; }

  // An independent stream: what one user draws does not change another's draws.
  SimRandom Fork() { return SimRandom(Next()); }

 private:
  uint64_t state_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_SIM_RANDOM_H_
