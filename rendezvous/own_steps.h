#ifndef TRYST_RENDEZVOUS_OWN_STEPS_H_
#define TRYST_RENDEZVOUS_OWN_STEPS_H_

#include <cstdint>

namespace tryst {

// The lowest steps are those of workers themselves: what travels in one belongs to no step of a
// job. A worker begins its own, and no peer begins, aborts or cleans up one.
inline constexpr int64_t kLastOwnStep = INT64_MIN + 63;
inline constexpr int64_t kWeightsStep = INT64_MIN + 45;  // python/tryst/selections.py has the next.
inline constexpr bool IsOwnStep(int64_t step) { return step <= kLastOwnStep; }

}  // namespace tryst

#endif  // TRYST_RENDEZVOUS_OWN_STEPS_H_
