// What glibc 2.28 lacks and gRPC, libstdc++, libgcc or our own sources call: linked into what is
// self-contained (older_glibc.py), and hidden there by its version script. A link says which
// function is missing here.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

// The function of that name that a newer glibc has.
template <typename Function>
Function* Newer(const char* name, Function&) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

extern "C" {

// 2.32. That there may be other threads is always right.
char __libc_single_threaded = 0;

// 2.33. The kernel's struct is glibc's on x86-64 and on aarch64.
int fstatat(int folder, const char* path, struct stat* out, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, out, flags));
}
int stat(const char* path, struct stat* out) noexcept { return fstatat(AT_FDCWD, path, out, 0); }
int lstat(const char* path, struct stat* out) noexcept {
  return fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat* out) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, out));
}
int fstat64(int fd, struct stat64* out) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, out));
}

// 2.36: by it std::random_device gets its numbers.
uint32_t arc4random() noexcept {
  uint32_t number;
  if (getentropy(&number, sizeof number) != 0) abort();
  return number;
}

// 2.30. An older glibc waits by the clock of the day alone, so that a wait changes its length where
// that clock is set.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  static const auto newer = Newer("pthread_cond_clockwait", pthread_cond_clockwait);
  if (newer != nullptr) return newer(condition, mutex, clock, until);
  timespec now, day;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &day);
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t nanoseconds =
      day.tv_nsec + (until->tv_nsec - now.tv_nsec) + kSecond;  // 0 to 3 seconds.
  const timespec then = {day.tv_sec + (until->tv_sec - now.tv_sec) - 1 + nanoseconds / kSecond,
                         nanoseconds % kSecond};
  return pthread_cond_timedwait(condition, mutex, &then);
}

// 2.33. What an older glibc counts goes round at 4 GiB.
struct mallinfo2 mallinfo2() noexcept {
  static const auto newer = Newer("mallinfo2", mallinfo2);
  if (newer != nullptr) return newer();
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const struct mallinfo old = mallinfo();
  const auto wide = [](int count) -> size_t { return static_cast<unsigned>(count); };
  return {wide(old.arena),    wide(old.ordblks), wide(old.smblks),  wide(old.hblks),
          wide(old.hblkhd),   wide(old.usmblks), wide(old.fsmblks), wide(old.uordblks),
          wide(old.fordblks), wide(old.keepcost)};
}

// 2.35: by it libgcc finds how to unwind the code at `address`.
int _dl_find_object(void* address, dl_find_object* found) noexcept {
  struct Search {
    uintptr_t address;
    dl_find_object* found;
  } search = {reinterpret_cast<uintptr_t>(address), found};
  const auto look = [](dl_phdr_info* library, size_t, void* data) {
    const Search& search = *static_cast<Search*>(data);
    const ElfW(Phdr)* frames = nullptr;
    bool inside = false;
    for (const ElfW(Phdr)* part = library->dlpi_phdr;
         part != library->dlpi_phdr + library->dlpi_phnum; ++part) {
      inside |= part->p_type == PT_LOAD &&
                search.address - library->dlpi_addr - part->p_vaddr < part->p_memsz;
      if (part->p_type == PT_GNU_EH_FRAME) frames = part;
    }
    if (!inside || frames == nullptr) return inside ? -1 : 0;
    *search.found = {};
    search.found->dlfo_eh_frame = reinterpret_cast<void*>(library->dlpi_addr + frames->p_vaddr);
    return 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

}  // extern "C"
