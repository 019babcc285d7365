/* Harm to one process, which audit.py preloads with this: its clock of the day is stepped, its disk
 * is slow. How much stands in a file that TRYST_AUDIT_HARM names and that all lives of this map.
 *
 * It wraps what programs call of the C library; what the C library calls within itself is as
 * before. Waits until a time of day end as the stepped clock says, and notice a step within
 * kSliceNs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  atomic_llong step_ns;  /* What the clock of the day is ahead of the machine's. */
  atomic_llong delay_us; /* For how long each call for a file takes. */
} harm_t;

enum { kSecondNs = 1000000000, kSliceNs = 50000000 };
/* A time since 1970, and not since the machine began. */
#define IS_OF_DAY(at) ((at)->tv_sec > 1000000000)

static harm_t none;
static harm_t* harm = &none;
static dev_t proc;

/* Of two versions the newest. */
static void* Next(const char* name, const char* version) {
  void* found = version == NULL ? NULL : dlvsym(RTLD_NEXT, name, version);
  return found != NULL ? found : dlsym(RTLD_NEXT, name);
}
#define NEXT(name, version)      \
  static __typeof__(&name) next; \
  if (next == NULL) next = (__typeof__(&name))Next(#name, version)

__attribute__((constructor)) static void Begin(void) {
  const char* path = getenv("TRYST_AUDIT_HARM");
  struct stat self;
  int file = path == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (stat("/proc/self/stat", &self) == 0) proc = self.st_dev;
  if (file < 0) return;
  void* bytes = mmap(NULL, sizeof(harm_t), PROT_READ, MAP_SHARED, file, 0);
  if (bytes != MAP_FAILED) harm = bytes;
  syscall(SYS_close, file);
}

/* ---- The clock of the day ---- */

static long long Ns(const struct timespec* at) { return at->tv_sec * 1000000000LL + at->tv_nsec; }
static struct timespec At(long long ns) {
  struct timespec at;
  at.tv_sec = ns / kSecondNs;
  at.tv_nsec = ns % kSecondNs;
  return at;
}

int clock_gettime(clockid_t clock, struct timespec* at) {
  NEXT(clock_gettime, NULL);
  const int failed = next(clock, at);
  const long long step = atomic_load_explicit(&harm->step_ns, memory_order_relaxed);
  if (failed == 0 && step != 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *at = At(Ns(at) + step);
  }
  return failed;
}

int gettimeofday(struct timeval* restrict at, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != NULL) *at = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec* at, int base) {
  clock_gettime(CLOCK_REALTIME, at);
  return base;
}

/* The machine's time until which to wait now, for a wait until `until` of our clock. */
static struct timespec Slice(const struct timespec* until) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const long long step = atomic_load(&harm->step_ns), most = Ns(&now) + kSliceNs;
  return At((Ns(until) < most ? Ns(until) : most) - step);
}
static int IsOver(const struct timespec* until) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return Ns(&now) >= Ns(until);
}

/* A slice that is over before its time is a wake-up without a reason, which may be. */
int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict until) {
  NEXT(pthread_cond_timedwait, "GLIBC_2.3.2");
  if (!IS_OF_DAY(until)) return next(condition, mutex, until);
  const struct timespec slice = Slice(until);
  const int ended = next(condition, mutex, &slice);
  return ended == ETIMEDOUT && !IsOver(until) ? 0 : ended;
}

int pthread_cond_clockwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           clockid_t clock, const struct timespec* restrict until) {
  NEXT(pthread_cond_clockwait, NULL);
  if (clock != CLOCK_REALTIME) return next(condition, mutex, clock, until);
  const struct timespec slice = Slice(until);
  const int ended = next(condition, mutex, clock, &slice);
  return ended == ETIMEDOUT && !IsOver(until) ? 0 : ended;
}

/* Abseil waits so. */
long syscall(long number, ...) {
  NEXT(syscall, NULL);
  va_list words;
  long a[6];
  va_start(words, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(words, long);
  va_end(words);
  const struct timespec* const until = (const struct timespec*)a[3];
  const int waits = number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 &&
                    (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && until != NULL;
  if (number == SYS_clock_gettime) return clock_gettime((clockid_t)a[0], (struct timespec*)a[1]);
  if (!waits) return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  for (;;) {
    const struct timespec slice = Slice(until);
    const long ended = next(number, a[0], a[1], a[2], &slice, a[4], a[5]);
    if (ended == 0 || errno != ETIMEDOUT || IsOver(until)) return ended;
  }
}

/* ---- The disk ---- */

static void Delay(void) {
  const long long delay = atomic_load_explicit(&harm->delay_us, memory_order_relaxed);
  if (delay == 0) return;
  const int was = errno;
  const struct timespec pause = At(delay * 1000);
  nanosleep(&pause, NULL);
  errno = was;
}

/* Of files alone, and not of the histories, which are for appending. */
static void DelayOf(int file) {
  struct stat what;
  if (atomic_load_explicit(&harm->delay_us, memory_order_relaxed) == 0) return;
  const int was = errno;
  const int is_file = fstat(file, &what) == 0 && S_ISREG(what.st_mode) && what.st_dev != proc &&
                      (fcntl(file, F_GETFL) & O_APPEND) == 0;
  errno = was;
  if (is_file) Delay();
}

#define OF_FILE(type, name, words, ...) \
  type name words {                     \
    NEXT(name, NULL);                   \
    DelayOf(file);                      \
    return next(__VA_ARGS__);           \
  }
OF_FILE(ssize_t, read, (int file, void* bytes, size_t size), file, bytes, size)
OF_FILE(ssize_t, write, (int file, const void* bytes, size_t size), file, bytes, size)
OF_FILE(ssize_t, readv, (int file, const struct iovec* parts, int count), file, parts, count)
OF_FILE(ssize_t, writev, (int file, const struct iovec* parts, int count), file, parts, count)
OF_FILE(ssize_t, pread, (int file, void* bytes, size_t size, off_t at), file, bytes, size, at)
OF_FILE(ssize_t, pwrite, (int file, const void* bytes, size_t size, off_t at), file, bytes, size,
        at)
OF_FILE(ssize_t, pread64, (int file, void* bytes, size_t size, off64_t at), file, bytes, size, at)
OF_FILE(ssize_t, pwrite64, (int file, const void* bytes, size_t size, off64_t at), file, bytes,
        size, at)
OF_FILE(int, fsync, (int file), file)
OF_FILE(int, fdatasync, (int file), file)

#define OPENS(type, name, words, ...) \
  type name words {                   \
    NEXT(name, NULL);                 \
    Delay();                          \
    return next(__VA_ARGS__);         \
  }
OPENS(FILE*, fopen, (const char* path, const char* mode), path, mode)
OPENS(FILE*, fopen64, (const char* path, const char* mode), path, mode)
