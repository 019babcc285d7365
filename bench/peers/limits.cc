// Measures the machine's own limits. memcpy, stream_copy: copies from cold memory to cold memory.
// cacheline: a cache line of shared memory goes to the other process and back; both spin.
// futex: the same, and both sleep.
//
//   limits WHAT pull|delivery BYTES SECONDS
#include <immintrin.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "bench/peers/harness.h"

namespace tryst {
namespace {

constexpr size_t kColdBytes = 256 << 20;  // Several times the largest cache.

void StreamCopy(char* into, const char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 32) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + 16));
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + at), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + at + 16), b);
  }
  _mm_sfence();
}

void MeasureCopy(bool stream, size_t bytes, double seconds) {
  const size_t places = std::max<size_t>(1, kColdBytes / bytes);
  char* from = Table::AllocatePages(places * bytes);
  char* into = Table::AllocatePages(places * bytes);
  const int64_t began_ns = MonotonicNs();
  const int64_t until_ns = began_ns + static_cast<int64_t>(seconds * 1e9);
  int64_t now_ns = began_ns;
  size_t copied = 0;
  for (size_t i = 0; now_ns < until_ns || i < 4; ++i) {
    // Skips the next block, so that no prefetcher has loaded it.
    const size_t place = i * 2654435761 % places;
    if (stream) {
      StreamCopy(into + place * bytes, from + place * bytes, bytes);
    } else {
      memcpy(into + place * bytes, from + place * bytes, bytes);
    }
    asm volatile("" ::"r"(into) : "memory");
    copied += bytes;
    now_ns = MonotonicNs();
  }
  const double taken = static_cast<double>(now_ns - began_ns) * 1e-9;
  const double gib = static_cast<double>(copied) / (1 << 30);
  printf("delivery\t%zu\t%.6g\tGiB/s\n", bytes, gib / taken);
  printf("cpu_per_gib\t%zu\t%.6g\ts\n", bytes, taken / gib);
}

struct alignas(128) Word {
  std::atomic<uint32_t> value{0};
};

void Await(Word* word, uint32_t wanted, bool sleep) {
  uint32_t seen;
  while ((seen = word->value.load(std::memory_order_acquire)) != wanted) {
    if (sleep) syscall(SYS_futex, &word->value, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
}
void Tell(Word* word, uint32_t value, bool sleep) {
  word->value.store(value, std::memory_order_release);
  if (sleep) syscall(SYS_futex, &word->value, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void MeasureRoundTrip(bool sleep, double seconds) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no shared memory");
  Word* words = new (memory) Word[2];
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t turn = 1;; ++turn) {
      Await(&words[0], turn, sleep);
      Tell(&words[1], turn, sleep);
    }
  }
  std::vector<int64_t> taken_ns;
  const int64_t began_ns = MonotonicNs();
  const int64_t until_ns = began_ns + static_cast<int64_t>(seconds * 1e9);
  int64_t asked_ns = began_ns;
  for (uint32_t turn = 1; asked_ns < until_ns; ++turn) {
    Tell(&words[0], turn, sleep);
    Await(&words[1], turn, sleep);
    const int64_t now_ns = MonotonicNs();
    taken_ns.push_back(now_ns - asked_ns);
    asked_ns = now_ns;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::sort(taken_ns.begin(), taken_ns.end());
  const auto quantile = [&taken_ns](double q) {
    return static_cast<double>(
               taken_ns[static_cast<size_t>(q * static_cast<double>(taken_ns.size() - 1))]) *
           1e-3;
  };
  printf("pull_p50\t8\t%.6g\tus\n", quantile(0.5));
  printf("pull_p99\t8\t%.6g\tus\n", quantile(0.99));
  printf("pull_p999\t8\t%.6g\tus\n", quantile(0.999));
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  if (argc < 5) tryst::Die("limits WHAT pull|delivery BYTES SECONDS");
  const std::string what = argv[1];
  const double seconds = atof(argv[4]);
  if (what == "cacheline" || what == "futex") {
    tryst::MeasureRoundTrip(what == "futex", seconds);
  } else {
    tryst::MeasureCopy(what == "stream_copy", strtoull(argv[3], nullptr, 10), seconds);
  }
  return 0;
}
