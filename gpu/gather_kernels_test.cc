// Runs the source of the kernels on the host. Of the one that stands by a block is a process, and a
// thread of it is a thread. So what the blocks and the host tell each other is tried without a GPU;
// how a GPU orders memory is not.

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

// ---- CUDA's words ----

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // Each block has a process.

namespace {

constexpr unsigned kThreads = 16;  // As many as the bytes before or behind the widest units.

struct Index {
  unsigned x = 0;
};
thread_local Index threadIdx;
Index blockIdx, blockDim, gridDim;
pthread_barrier_t barrier;
bool votes[kThreads];

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

void __syncthreads() { pthread_barrier_wait(&barrier); }
unsigned CountVotes(bool vote) {
  votes[threadIdx.x] = vote;
  __syncthreads();
  unsigned count = 0;
  for (const bool one : votes) count += one;
  __syncthreads();
  return count;
}
bool __all_sync(unsigned, bool vote) { return CountVotes(vote) == kThreads; }
bool __any_sync(unsigned, bool vote) { return CountVotes(vote) > 0; }
void __threadfence_system() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
unsigned atomicAdd(unsigned* word, unsigned by) {
  return __atomic_fetch_add(word, by, __ATOMIC_RELAXED);
}
template <typename Unit>
Unit __ldcv(const Unit* from) {
  return *from;
}
template <typename Unit>
Unit __ldcs(const Unit* from) {
  return *from;
}
template <typename Unit>
void __stcs(Unit* to, Unit unit) {
  *to = unit;
}

// ---- What gather_asm.cuh has ----

unsigned long long Now() { return static_cast<unsigned long long>(tryst::SteadyClock().NowNs()); }
void Fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
void FenceOfGpu() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
unsigned long long LoadOfHost(const unsigned long long* from) {
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
unsigned long long LoadOfGpu(const unsigned long long* from) {
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
void StoreForGpu(unsigned long long* to, unsigned long long word) {
  __atomic_store_n(to, word, __ATOMIC_RELEASE);
}

}  // namespace

#include "gpu/gather_kernels.cuh"

namespace tryst {
namespace {

constexpr uint64_t kBytes = 5000;
constexpr unsigned long long kLifeNs = 20'000'000'000;
constexpr unsigned long long kLingerNs = 100'000'000;

// What the GPU and the host share.
struct Memory {
  StandbyWords words;
  StandbyBlocks blocks;
  uint8_t from[kStandbySlots + 1][kBytes];
  uint8_t into[kStandbySlots + 1][kBytes];
};

class StandbyKernelTest : public ::testing::TestWithParam<unsigned> {
 protected:
  StandbyKernelTest()
      : memory_(static_cast<Memory*>(mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~StandbyKernelTest() override { munmap(memory_, sizeof(Memory)); }

  // Launches the blocks as Standby does.
  void Launch(unsigned blocks, uint64_t next, unsigned long long life_ns = kLifeNs) {
    ++launches_;
    for (unsigned block = 0; block < blocks; ++block) {
      const pid_t child = fork();
      if (child == 0) {
        RunBlock(block, blocks, next, life_ns);
        _exit(0);
      }
      ASSERT_GT(child, 0);
      running_.push_back(child);
    }
  }
  // The stream is idle.
  void AwaitEnd() {
    for (const pid_t child : running_) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    running_.clear();
    EXPECT_EQ(memory_->words.came, launches_);
    EXPECT_EQ(memory_->words.left, launches_);
    const StandbyBlocks::Counts zeroes = {};
    EXPECT_EQ(memcmp(&memory_->blocks.counts, &zeroes, sizeof(zeroes)), 0) << "for the next launch";
  }
  void Name(uint64_t number, const void* from, void* into, uint64_t bytes) {
    const uint64_t tag = number << kStandbyTagShift;
    unsigned long long* const slot = memory_->words.slots[number % kStandbySlots];
    __atomic_store_n(&slot[0], reinterpret_cast<uint64_t>(into) | tag, __ATOMIC_RELEASE);
    __atomic_store_n(&slot[1], reinterpret_cast<uint64_t>(from) | tag, __ATOMIC_RELEASE);
    __atomic_store_n(&slot[2], bytes | tag, __ATOMIC_RELEASE);
  }
  uint64_t ended() const { return __atomic_load_n(&memory_->words.ended, __ATOMIC_ACQUIRE); }
  void AwaitEnded(uint64_t number) {
    for (int i = 0; i < 20'000 && ended() < number; ++i) usleep(1000);
    ASSERT_EQ(ended(), number);
  }
  // Copies `count` pieces and sees that they are there, whole.
  void CopyAll(uint64_t first, uint64_t count) {
    for (uint64_t number = first; number < first + count; ++number) {
      uint8_t* const from = memory_->from[number % kStandbySlots];
      uint8_t* const into = memory_->into[number % kStandbySlots];
      const uint64_t skew = number % 3;
      const uint64_t bytes = kBytes - skew - number % 7;
      for (uint64_t i = 0; i < kBytes; ++i)
        from[i] = static_cast<uint8_t>(number * 31 + i + i / 256);
      memset(into, 0xee, kBytes);
      Name(number, from, into + skew, bytes);
      AwaitEnded(number);
      EXPECT_EQ(memcmp(into + skew, from, bytes), 0) << "copy " << number;
      if (HasFailure()) return;
    }
  }

  Memory* const memory_;
  uint64_t launches_ = 0;
  std::vector<pid_t> running_;

 private:
  void RunBlock(unsigned block, unsigned blocks, uint64_t next, unsigned long long life_ns) {
    blockIdx.x = block;
    blockDim.x = kThreads;
    gridDim.x = blocks;
    pthread_barrier_init(&barrier, nullptr, kThreads);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.emplace_back([this, i, next, life_ns] {
        threadIdx.x = i;
        tryst_standby(&memory_->words, &memory_->blocks, next, launches_, kLingerNs, life_ns);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};
INSTANTIATE_TEST_SUITE_P(Blocks, StandbyKernelTest, ::testing::Values(1, 3));

TEST_P(StandbyKernelTest, CopiesWhatItIsToldLaunchAfterLaunch) {
  uint64_t next = 1;
  for (int launch = 0; launch < 3; ++launch) {
    Launch(GetParam(), next);
    ASSERT_NO_FATAL_FAILURE(CopyAll(next, 3 + kStandbySlots));
    next += 3 + kStandbySlots;
    ASSERT_NO_FATAL_FAILURE(AwaitEnd());
  }
}

// A copy is named to the kernel when it is leaving or has left.
TEST_P(StandbyKernelTest, WhatItDidNotSeeTheNextLaunchCopies) {
  Launch(GetParam(), 1);
  ASSERT_NO_FATAL_FAILURE(CopyAll(1, 2));
  ASSERT_NO_FATAL_FAILURE(AwaitEnd());
  Name(3, memory_->from[0], memory_->into[3], 100);
  usleep(10'000);
  EXPECT_EQ(ended(), 2u);
  Launch(GetParam(), 3);
  ASSERT_NO_FATAL_FAILURE(AwaitEnded(3));
  EXPECT_EQ(memcmp(memory_->into[3], memory_->from[0], 100), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitEnd());
}

// A caller that waits for the whole device waits for this kernel, too.
TEST_P(StandbyKernelTest, ItLeavesAlsoWhereACopyAlwaysWaits) {
  constexpr unsigned long long kShortLifeNs = 50'000'000;
  Launch(GetParam(), 1, kShortLifeNs);
  const int64_t until_ns = SteadyClock().NowNs() + 100 * static_cast<int64_t>(kShortLifeNs);
  uint64_t named = 0;
  while (__atomic_load_n(&memory_->words.left, __ATOMIC_ACQUIRE) != launches_) {
    ASSERT_LT(SteadyClock().NowNs(), until_ns);
    if (named - ended() == kStandbySlots) continue;
    ++named;
    Name(named, memory_->from[0], memory_->into[0], 100);
  }
  EXPECT_GT(ended(), 0u);
  EXPECT_LT(ended(), named);
  ASSERT_NO_FATAL_FAILURE(AwaitEnd());
}

// The words of a copy have the lower 16 bits of its number.
TEST_P(StandbyKernelTest, NoBlockTakesACopyOf65536CopiesAgo) {
  constexpr uint64_t kAgo = 1 << 16;
  constexpr uint64_t kFirst = 3;
  Launch(3, kFirst);
  ASSERT_NO_FATAL_FAILURE(CopyAll(kFirst, kStandbySlots));
  ASSERT_NO_FATAL_FAILURE(AwaitEnd());
  // The launches of one block or of several in between; of their copies the last.
  Launch(GetParam(), kFirst + kAgo - kStandbySlots);
  ASSERT_NO_FATAL_FAILURE(CopyAll(kFirst + kAgo - kStandbySlots, kStandbySlots));
  ASSERT_NO_FATAL_FAILURE(AwaitEnd());
  memset(memory_->into, 0xee, sizeof(memory_->into));
  Launch(3, kFirst + kAgo);
  usleep(20'000);
  for (const uint8_t* at = &memory_->into[0][0]; at < &memory_->into[kStandbySlots][0]; ++at) {
    ASSERT_EQ(*at, 0xee) << "nothing is named, and something is copied";
  }
  ASSERT_NO_FATAL_FAILURE(CopyAll(kFirst + kAgo, 2 * kStandbySlots));
  ASSERT_NO_FATAL_FAILURE(AwaitEnd());
}

// Threads that do not wait for each other run one after the other.
void RunGather(unsigned blocks, unsigned threads, const std::vector<GatherPiece>& pieces) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {
      tryst_gather(pieces.data(), static_cast<unsigned>(pieces.size()));
    }
  }
}

// Pieces of any size, of none and of one byte, wherever they lie at both ends; not a byte beside.
TEST(GatherKernelTest, CopiesWhatHasAnySizeAndAlignmentAndNothingElse) {
  std::minstd_rand random(1);
  for (int round = 0; round < 200; ++round) {
    const unsigned most = round % 4 == 0 ? 20'000 : 70;
    std::vector<GatherPiece> pieces;
    std::vector<uint8_t> from(200'000), into(400'000, 0xee);
    for (uint8_t& one : from) one = static_cast<uint8_t>(random());
    std::vector<uint8_t> wanted = into;
    for (size_t at = random() % 16; pieces.size() < 50;) {
      const size_t bytes = random() % 5 == 0 ? random() % 2 : random() % most;
      const size_t read = random() % (from.size() - bytes);
      if (at + bytes > into.size()) break;
      pieces.push_back({reinterpret_cast<unsigned long long>(into.data() + at),
                        reinterpret_cast<unsigned long long>(from.data() + read), bytes});
      memcpy(wanted.data() + at, from.data() + read, bytes);
      at += bytes + random() % 40;
    }
    RunGather(1 + static_cast<unsigned>(round) % 60, round % 2 == 0 ? 512 : 32, pieces);
    ASSERT_TRUE(into == wanted) << "in round " << round;
  }
}

}  // namespace
}  // namespace tryst
