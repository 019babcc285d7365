#include "channel/arena/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tryst {
namespace {

OwnedFd Again(const SharedMemory& memory) { return OwnedFd(dup(memory.fd())); }

TEST(SharedMemoryTest, BothSidesSeeTheSame) {
  auto memory = SharedMemory::Create(10'000, SharedMemory::Writers::kEverybody);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->bytes(), SharedMemory::Rounded(10'000));
  auto mapped = SharedMemory::Map(Again(**memory), (*memory)->bytes(), /*writable=*/true);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  (*mapped)->data()[9'999] = 7;
  EXPECT_EQ((*memory)->data()[9'999], 7);
  EXPECT_EQ((*memory)->data()[0], 0);
}

TEST(SharedMemoryTest, OnlyItsCreatorWritesTensors) {
  auto memory = SharedMemory::Create(4096, SharedMemory::Writers::kCreator);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_FALSE(SharedMemory::Map(Again(**memory), 4096, /*writable=*/true).ok());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, (*memory)->fd(), 0), MAP_FAILED);
  auto mapped = SharedMemory::Map(Again(**memory), 4096, /*writable=*/false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  (*memory)->data()[1] = 3;
  EXPECT_EQ((*mapped)->data()[1], 3);
}

TEST(SharedMemoryTest, NobodyCanTakePagesAway) {
  auto memory = SharedMemory::Create(8192, SharedMemory::Writers::kCreator);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_NE(ftruncate((*memory)->fd(), 4096), 0);
  EXPECT_NE(ftruncate((*memory)->fd(), 16384), 0);
  EXPECT_NE(fallocate((*memory)->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

// Other files that a hostile peer may send.
TEST(SharedMemoryTest, NothingElseIsMapped) {
  OwnedFd file(open("/proc/self/exe", O_RDONLY));
  EXPECT_TRUE(absl::IsDataLoss(SharedMemory::Map(std::move(file), 4096, false).status()));
  OwnedFd null(open("/dev/zero", O_RDWR));
  EXPECT_TRUE(absl::IsDataLoss(SharedMemory::Map(std::move(null), 4096, false).status()));
  EXPECT_TRUE(absl::IsDataLoss(SharedMemory::Map(OwnedFd(), 4096, false).status()));

  OwnedFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_TRUE(absl::IsDataLoss(SharedMemory::Map(std::move(unsealed), 4096, false).status()));

  auto memory = SharedMemory::Create(8192, SharedMemory::Writers::kCreator);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (uint64_t bytes : {0, 4096, 8191, 12288}) {
    EXPECT_TRUE(absl::IsDataLoss(SharedMemory::Map(Again(**memory), bytes, false).status()))
        << bytes;
  }
}

// A peer that may still shrink it could take a page away while it is read, which would kill us.
TEST(SharedMemoryTest, WhatLacksOneOfItsSealsIsNotMapped) {
  constexpr int kSeals[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_FUTURE_WRITE};
  for (const int missing : {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_FUTURE_WRITE}) {
    OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(fallocate(fd.get(), 0, 0, 4096), 0);
    int seals = 0;
    for (const int seal : kSeals) seals |= seal == missing ? 0 : seal;
    ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    const absl::Status mapped = SharedMemory::Map(std::move(fd), 4096, false).status();
    EXPECT_EQ(absl::IsDataLoss(mapped), missing != 0) << missing << ": " << mapped;
  }
}

// It costs its peer nothing, and would cost whoever pins all of it each of its pages.
TEST(SharedMemoryTest, WhatHasHolesIsNotMappedForReading) {
  constexpr int64_t kBytes = int64_t{300} << 30;
  constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;
  for (const int64_t bytes : {kBytes, int64_t{8192}}) {
    OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(fd.get(), bytes), 0);
    ASSERT_EQ(fallocate(fd.get(), 0, 0, 4096), 0);
    ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kAllSeals), 0);
    EXPECT_NE(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    const absl::Status mapped =
        SharedMemory::Map(std::move(fd), static_cast<uint64_t>(bytes), false).status();
    EXPECT_TRUE(absl::IsDataLoss(mapped)) << mapped;
    EXPECT_NE(mapped.message().find("pages of its shared memory are missing"), std::string::npos)
        << mapped;
  }
}

uint64_t FreeHugePages() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t free = 0;
  file >> free;
  return free;
}

TEST(SharedMemoryTest, ReservedHugePagesWhileThereAreAny) {
  const bool any = FreeHugePages() >= 2;
  auto memory =
      SharedMemory::Create(2 * SharedMemory::kHugePageBytes, SharedMemory::Writers::kCreator);
  ASSERT_TRUE(memory.ok()) << memory.status();  // It works with huge pages and without.
  EXPECT_EQ((*memory)->reserved_huge_pages(), any);
  auto mapped = SharedMemory::Map(Again(**memory), (*memory)->bytes(), false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  (*memory)->data()[SharedMemory::kHugePageBytes] = 9;
  EXPECT_EQ((*mapped)->data()[SharedMemory::kHugePageBytes], 9);
  // Ordinary pages are for rings, and for sizes that are not whole huge pages.
  auto odd =
      SharedMemory::Create(SharedMemory::kHugePageBytes + 4096, SharedMemory::Writers::kCreator);
  ASSERT_TRUE(odd.ok());
  EXPECT_FALSE((*odd)->reserved_huge_pages());
}

// A hole in reserved huge pages would kill its reader when no page is left.
TEST(SharedMemoryTest, HugePagesThatAHoleCouldBePunchedIntoAreNotMapped) {
  OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(SharedMemory::kHugePageBytes)) != 0) {
    GTEST_SKIP() << "no hugetlbfs here";
  }
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(absl::IsDataLoss(
      SharedMemory::Map(std::move(fd), SharedMemory::kHugePageBytes, false).status()));
}

}  // namespace
}  // namespace tryst
