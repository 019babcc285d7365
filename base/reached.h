#ifndef TRYST_BASE_REACHED_H_
#define TRYST_BASE_REACHED_H_

#include <atomic>
#include <cstdint>

namespace tryst {

// A guard is an `if` that only a fault or a hostile peer can enter. It counts how often it was
// entered, so that a proof can show that it got there:
//
//   if (epoch != epoch_) {
//     TRYST_REACHED("hostile: message of another epoch");
//     return absl::DataLossError(...);
//   }
//
// The text begins with the proof that has to reach it: "sim: " or "hostile: ". Costs one relaxed
// increment where things have gone wrong already, and nothing elsewhere: the linker makes the
// list of all guards, of one program or shared library. For functions in .cc files; not in inline
// functions or templates.
struct Guard {
  const char* name;
  std::atomic<uint64_t> times;
};

}  // namespace tryst

#define TRYST_REACHED(text)                                            \
  do {                                                                 \
    static ::tryst::Guard guard_reached                                \
        __attribute__((section("tryst_reached"), used)) = {text, {0}}; \
    guard_reached.times.fetch_add(1, std::memory_order_relaxed);       \
  } while (false)

// Begin and end of the list of this program's guards, made by the linker; both null in a program
// without guards. A test that reads the list has linkstatic = True in BUILD.
extern "C" {
extern ::tryst::Guard tryst_reached_begin __asm__("__start_tryst_reached") __attribute__((weak));
extern ::tryst::Guard tryst_reached_end __asm__("__stop_tryst_reached") __attribute__((weak));
}

namespace tryst {

// Calls fn(name, times) for each guard that is linked into this program, also with 0.
template <typename Fn>
void ForEachGuard(Fn fn) {
  for (const Guard* guard = &tryst_reached_begin; guard != &tryst_reached_end; ++guard) {
    fn(guard->name, guard->times.load(std::memory_order_relaxed));
  }
}

}  // namespace tryst

#endif  // TRYST_BASE_REACHED_H_
