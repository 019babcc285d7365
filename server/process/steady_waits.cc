#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#include <cstdarg>
#include <cstdint>

// Abseil, and with it gRPC's timers, waits until a time of day, which it has made of how long it
// wants to wait. Where the clock of the day is set back meanwhile, it waits for so much longer: no
// call of gRPC meets its deadline, and no channel connects again. In what is linked with
// --wrap=syscall, such a wait is by the clock that nobody can set.

extern "C" long __real_syscall(long number, ...);  // NOLINT: the linker gives these names.

namespace {

// When `until`, a time of day, will be if nobody sets its clock.
timespec Steady(const timespec& until) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  timespec day, at;
  clock_gettime(CLOCK_REALTIME, &day);
  clock_gettime(CLOCK_MONOTONIC, &at);
  at.tv_sec += until.tv_sec - day.tv_sec;
  at.tv_nsec += until.tv_nsec - day.tv_nsec;
  if (at.tv_nsec < 0) {
    at.tv_nsec += kSecondNs;
    --at.tv_sec;
  } else if (at.tv_nsec >= kSecondNs) {
    at.tv_nsec -= kSecondNs;
    ++at.tv_sec;
  }
  return at.tv_sec < 0 ? timespec{} : at;
}

}  // namespace

extern "C" long __wrap_syscall(long number, ...) {  // NOLINT
  va_list words;
  long args[6];
  va_start(words, number);
  for (long& arg : args) arg = va_arg(words, long);
  va_end(words);
  constexpr long kWaits = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  timespec until;
  if (number == SYS_futex && (static_cast<int>(args[1]) & ~FUTEX_PRIVATE_FLAG) == kWaits &&
      args[3] != 0) {
    until = Steady(*reinterpret_cast<const timespec*>(args[3]));
    args[1] &= ~static_cast<long>(FUTEX_CLOCK_REALTIME);
    args[3] = reinterpret_cast<long>(&until);
  }
  return __real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}
