#include "bench/peers/workload.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tryst {
namespace {

constexpr size_t kMostTimes = 1 << 20;
constexpr int64_t kLateNs = 500'000'000;
constexpr uint64_t kScribble = 0xdeadbeefdeadbeef;

uint64_t WordOf(int key, size_t index) {
  return (static_cast<uint64_t>(key) + 1) * 0x9e3779b97f4a7c15 ^ (index * 0xd1b54a32d192ed03 + 77);
}

uint64_t Load(const char* at) {
  uint64_t word;
  memcpy(&word, at, sizeof(word));
  return word;
}

void CheckWord(const char* data, int key, size_t index) {
  const uint64_t found = Load(data + 8 * index);
  if (found != WordOf(key, index)) {
    Die("tensor %d: word %zu is %" PRIx64 ", not %" PRIx64, key, index, found, WordOf(key, index));
  }
}

// 700 small tensors, 250 of a few KiB and 50 large ones, shuffled: about 20 MiB.
std::vector<size_t> MixedSizes() {
  std::vector<size_t> sizes;
  uint64_t state = 12345;
  const auto between = [&state](size_t low, size_t high) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (low + (state >> 33) % (high - low)) & ~size_t{7};
  };
  for (int i = 0; i < 1000; ++i) {
    const int kind = (i * 37) % 1000;
    sizes.push_back(kind < 700   ? between(8, 1024)
                    : kind < 950 ? between(4 << 10, 32 << 10)
                                 : between(128 << 10, 512 << 10));
  }
  return sizes;
}

}  // namespace

void Die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "bench[%d]: ", getpid());
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  _exit(2);
}

int64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

std::string KeyOf(int index) {
  char text[kKeyBytes + 1];
  snprintf(text, sizeof(text), "/job:worker/replica:0/task:1/cpu:0;edge_%08d_w/read;0:0", index);
  return text;
}

char* Table::AllocatePages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no memory for %zu bytes", bytes);
  memset(memory, 1, bytes);
  return static_cast<char*>(memory);
}

Table::Table(const std::vector<size_t>& sizes, const Allocate& allocate) {
  size_t total = 0;
  for (size_t bytes : sizes) total += (bytes + 4095) & ~size_t{4095};
  char* at = allocate(total);
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t word = 0; word < sizes[i] / 8; ++word) {
      const uint64_t value = WordOf(static_cast<int>(i), word);
      memcpy(at + 8 * word, &value, sizeof(value));
    }
    by_key_[KeyOf(static_cast<int>(i))] = static_cast<int>(i);
    tensors_.push_back({at, sizes[i]});
    at += (sizes[i] + 4095) & ~size_t{4095};
  }
}

size_t Workload::max_bytes() const { return *std::max_element(sizes.begin(), sizes.end()); }

Workload MakeWorkload(const std::string& name, size_t bytes, double seconds) {
  Workload workload;
  workload.name = name;
  workload.seconds = seconds;
  workload.sizes.assign(1, bytes);
  if (name == "pull" || name == "idle") {
    workload.sizes.assign(bytes <= 4096 ? 64 : 8, bytes);
    workload.warm_up = 500;
    workload.at_least = 1000;
    if (name == "idle") workload.seconds = 0.05;
  } else if (name == "delivery8") {
    workload.slots = 4;
    workload.sizes.assign(workload.slots, bytes);
    workload.warm_up = workload.at_least = workload.slots;
    workload.producers = 8;
  } else if (name == "delivery") {
    workload.slots = bytes > (64 << 20) ? 4 : 8;
    workload.sizes.assign(workload.slots, bytes);
    workload.warm_up = workload.slots;
    workload.at_least = 2 * workload.slots;
  } else if (name == "rate" || name == "rate4") {
    workload.producers = name == "rate" ? 1 : 4;
    workload.slots = 128;
    workload.sizes.assign(1024, bytes);
    workload.warm_up = 5000;
    workload.at_least = 5000;
  } else if (name == "step1" || name == "step3") {
    workload.slots = 64;
    workload.sizes = MixedSizes();
    workload.producers = name == "step1" ? 1 : 3;
    workload.exact = workload.keeps_nothing = true;
  } else if (name == "incast") {
    workload.slots = 2;
    workload.sizes.assign(2, bytes);
    workload.at_least = 4;
    workload.producers = 8;
    workload.keeps_nothing = workload.checks_all = true;
  } else if (name != "first") {
    Die("no workload %s: pull delivery delivery8 rate rate4 first idle step1 step3 incast",
        name.c_str());
  }
  return workload;
}

namespace {

// An end with one thread needs no lock, and locking would count in its figures.
class ABSL_SCOPED_LOCKABLE LockIf {
 public:
  LockIf(Mutex* mu, bool wanted) ABSL_NO_THREAD_SAFETY_ANALYSIS : mu_(wanted ? mu : nullptr) {
    if (mu_ != nullptr) mu_->Lock();
  }
  ~LockIf() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->Unlock();
  }

 private:
  Mutex* const mu_;
};

}  // namespace

Puller::Puller(const Workload& workload, bool threads)
    : workload_(workload), threads_(threads), timed_(workload.slots == 1) {
  for (size_t i = 0; i < workload.sizes.size(); ++i) keys_.push_back(KeyOf(static_cast<int>(i)));
  slots_.resize(workload.slots);
  for (Slot& slot : slots_) slot.into = Table::AllocatePages(workload.max_bytes());
  if (timed_) taken_ns_.reserve(kMostTimes);
}

void Puller::Start(int64_t count) {
  LockIf lock(&mu_, threads_);
  limit_ = count;
  asked_ = landed_ = bytes_landed_ = 0;
  taken_ns_.clear();
  finished_ = false;
  began_ns_ = now_ns_ = MonotonicNs();
  deadline_ns_ = began_ns_ + static_cast<int64_t>(workload_.seconds * 1e9);
  // Two processes that spin on one processor need a time slice for each tensor.
  late_ns_ = workload_.exact ? INT64_MAX : deadline_ns_ + kLateNs;
  for (size_t slot = 0; slot < slots_.size() && More(); ++slot) Ask(static_cast<int>(slot));
}

bool Puller::More() {
  if (now_ns_ >= late_ns_) return false;
  if (limit_ > 0) return asked_ < limit_;
  return asked_ < workload_.at_least || now_ns_ < deadline_ns_;
}

void Puller::Ask(int index) {
  Slot& slot = slots_[index];
  slot.key = next_key_;
  if (++next_key_ == static_cast<int>(keys_.size())) next_key_ = 0;
  const size_t bytes = workload_.sizes[slot.key];
  // Bytes of the last tensor must not be taken for this one.
  for (size_t word : {size_t{0}, bytes / 16, bytes / 8 - 1}) {
    memcpy(slot.into + 8 * word, &kScribble, sizeof(kScribble));
  }
  ++asked_;
  if (timed_) slot.asked_ns = MonotonicNs();
  end_->Ask(index, keys_[slot.key], slot.into, bytes);
}

void Puller::Landed(int index, const char* data) {
  LockIf lock(&mu_, threads_);
  Slot& slot = slots_[index];
  const size_t bytes = workload_.sizes[slot.key];
  if (timed_ || bytes > 4096 || landed_ % 16 == 0) now_ns_ = MonotonicNs();
  if (timed_ && taken_ns_.size() < kMostTimes) {
    taken_ns_.push_back(static_cast<uint32_t>(now_ns_ - slot.asked_ns));
  }
  if (workload_.checks_all) {
    for (size_t word = 0; word < bytes / 8; ++word) CheckWord(data, slot.key, word);
  } else {
    for (size_t word : {size_t{0}, bytes / 16, bytes / 8 - 1}) CheckWord(data, slot.key, word);
  }
  if (!workload_.keeps_nothing) slot.data = data;
  ++landed_;
  bytes_landed_ += static_cast<int64_t>(bytes);
  if (More()) {
    Ask(index);
  } else if (landed_ == asked_) {
    Finish();
  }
}

void Puller::Finish() {
  ended_ns_ = MonotonicNs();
  finished_.store(true, std::memory_order_release);
  if (threads_) finished_changed_.NotifyAll();
}

void Puller::WaitFinished() {
  MutexLock lock(&mu_);
  while (!finished()) finished_changed_.Wait(&mu_);
}

const std::vector<uint32_t>& Puller::SortedNs() {
  std::sort(taken_ns_.begin(), taken_ns_.end());
  return taken_ns_;
}

void Puller::CheckAll() const {
  for (const Slot& slot : slots_) {
    if (slot.data == nullptr) continue;
    for (size_t word = 0; word < workload_.sizes[slot.key] / 8; ++word) {
      CheckWord(slot.data, slot.key, word);
    }
  }
}

}  // namespace tryst
