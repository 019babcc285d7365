// Grants between processes. Each owner is a child of the test, which does what it is told.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/failing_call.h"
#include "server/regions/grant_book.h"
#include "server/regions/granted_memory.h"
#include "server/regions/mapped_segments.h"

namespace tryst {
namespace {

constexpr char kOwner[] = "/job:owner/replica:0/task:0";
constexpr uint64_t kLife = 0x1234;
constexpr uint64_t kBytes = 256 << 10;
constexpr uid_t kNobody = 65534;

// Memory that another process sees, too.
template <typename T>
T* Shared() {
  void* const memory =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) T();
}

char ByteAt(uint64_t at, int seed) { return static_cast<char>(at * 31 + at / 251 + seed); }

// Yama lets a process read its children alone, unless they say otherwise.
void BeReadDespiteYama() { prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); }

// What an owner has, in its process.
struct Owned {
  explicit Owned(const std::string& worker) : book(worker, kLife, "") {
    memory = static_cast<char*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  // From now on it lies in a segment that others can map.
  void Share() {
    segment = *SharedMemory::Create(2 * kBytes, SharedMemory::Writers::kCreator);
    memory = reinterpret_cast<char*>(segment->data()) + 8192;
    book.SetFindShared([this](const void* found) -> GrantBook::Shared {
      return {segment, static_cast<uint64_t>(static_cast<const uint8_t*>(found) - segment->data())};
    });
  }
  std::string Open(int seed) {
    for (uint64_t i = 0; i < kBytes; ++i) memory[i] = ByteAt(i, seed);
    opening = *book.Open(memory, kBytes);
    return opening->text();
  }

  GrantBook book;
  std::shared_ptr<SharedMemory> segment;
  char* memory;
  std::unique_ptr<GrantBook::Opening> opening;
};

class Child {
 public:
  using Do = std::function<std::string(Owned* owned, const std::string& told)>;
  // As the user `uid`, if that is not 0.
  explicit Child(Do act, const std::string& worker = kOwner, uid_t uid = 0) {
    int down[2], up[2];
    EXPECT_EQ(pipe2(down, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(up, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(down[1]);
      if (uid != 0 && (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0)) _exit(9);
      if (uid != 0) prctl(PR_SET_DUMPABLE, 1);
      BeReadDespiteYama();
      Owned owned(worker);
      char text[256];
      ssize_t got = 0;
      while ((got = read(down[0], text, sizeof(text))) > 0) {
        const std::string answer = act(&owned, {text, static_cast<size_t>(got)}) + "\n";
        if (write(up[1], answer.data(), answer.size()) < 0) break;
      }
      _exit(0);
    }
    close(down[0]);
    close(up[1]);
    to_ = OwnedFd(down[1]);
    from_ = OwnedFd(up[0]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::string Tell(const std::string& what) {
    EXPECT_EQ(write(to_.get(), what.data(), what.size()), static_cast<ssize_t>(what.size()));
    std::string answer;
    char byte = 0;
    while (read(from_.get(), &byte, 1) == 1 && byte != '\n') answer.push_back(byte);
    return answer;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  OwnedFd to_, from_;
};

// open: a region of other bytes each time; end; munmap; fork: a child's number, who stays.
std::string Obey(Owned* owned, const std::string& told) {
  static int openings = 0;
  if (told == "open") return owned->Open(++openings);
  if (told == "share") owned->Share();
  if (told == "close") close(owned->segment->fd());
  if (told == "scribble") memset(owned->memory, '#', kBytes);
  if (told == "end") owned->opening->End();
  if (told == "munmap") munmap(owned->memory, kBytes);
  if (told == "fork") {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pause();
    }
    return absl::StrCat(child);
  }
  return "done";
}

const std::vector<ByteSpan>& Wanted() {
  static const auto* const wanted = new std::vector<ByteSpan>{{100, 5000}, {0, 3}, {90'000, 77}};
  return *wanted;
}

absl::Status ReadInto(const GrantedMemory& memory, const Selection& wanted, uint64_t left,
                      const Selection& landing, std::vector<char>* into) {
  GrantedPart part;
  SelectionPlace from, to;
  for (; left > 0; left -= part.bytes) {
    if (!memory.Plan(wanted, landing, into->data(), left, &from, &to, &part)) {
      return absl::OutOfRangeError("");
    }
    absl::Status read = memory.Read(&part);
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

absl::Status Read(const GrantedMemory& memory, std::vector<char>* into) {
  const std::vector<ByteSpan> landing = {{1, 5080}};
  into->assign(6000, '.');
  return ReadInto(memory, Selection::Spans(Wanted()), 5080, Selection::Spans(landing), into);
}

void ExpectBytes(const std::vector<char>& into, int seed) {
  uint64_t at = 1;
  EXPECT_EQ(into[0], '.');
  for (const ByteSpan& span : Wanted()) {
    for (uint64_t i = 0; i < span.bytes; ++i) {
      ASSERT_EQ(into[at++], ByteAt(span.offset + i, seed)) << at;
    }
  }
  EXPECT_EQ(into[at], '.');
}

auto OpenGrant(const std::string& text) { return GrantedMemory::Open(text, kOwner, kLife); }

TEST(GrantsTest, AnotherProcessIsReadUntilItEndsTheGrant) {
  Child owner(Obey);
  const auto memory = OpenGrant(owner.Tell("open"));
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<char> into;
  for (int again = 0; again < 3; ++again) {
    ASSERT_TRUE(Read(**memory, &into).ok());
    ExpectBytes(into, 1);
  }
  owner.Tell("end");
  EXPECT_TRUE(absl::IsUnavailable(Read(**memory, &into)));
  // It has the same slot and memory, and other bytes.
  const auto other = OpenGrant(owner.Tell("open"));
  EXPECT_TRUE(absl::IsUnavailable(Read(**memory, &into)));
  ASSERT_TRUE(Read(**other, &into).ok());
  ExpectBytes(into, 2);
}

// Copies as a fetch does; kUnavailable: it was closed meanwhile.
absl::Status CopyMapped(const GrantedMemory& memory, std::vector<char>* into) {
  const std::vector<ByteSpan> landing = {{1, 2000}, {2001, 3080}};
  SelectionPlace from, to;
  into->assign(6000, '.');
  memory.Copy(Selection::Spans(Wanted()), Selection::Spans(landing), into->data(), 3000, true,
              &from, &to);
  memory.Copy(Selection::Spans(Wanted()), Selection::Spans(landing), into->data(), 2080, false,
              &from, &to);
  return memory.StillOpen();
}

size_t SegmentsMapped() {
  std::ifstream maps("/proc/self/maps");
  size_t found = 0;
  for (std::string line; std::getline(maps, line);)
    found += absl::StrContains(line, "memfd:tryst ");
  return found;
}

TEST(GrantsTest, AnotherProcessesSegmentIsMappedUntilNobodyHasIt) {
  Child owner(Obey);
  owner.Tell("share");
  MappedSegments segments;
  auto memory = *GrantedMemory::Open(owner.Tell("open"), kOwner, kLife, &segments);
  ASSERT_TRUE(memory->mapped());
  EXPECT_EQ(segments.bytes(), 2 * kBytes);
  std::vector<char> into;
  ASSERT_TRUE(CopyMapped(*memory, &into).ok());
  ExpectBytes(into, 1);
  ASSERT_TRUE(Read(*memory, &into).ok()) << "the kernel reads it, too";
  ExpectBytes(into, 1);
  // What it holds afterwards does not count.
  owner.Tell("end");
  owner.Tell("scribble");
  EXPECT_TRUE(absl::IsUnavailable(CopyMapped(*memory, &into)));
  // Another opening has the same segment, which is mapped once.
  const auto again = *GrantedMemory::Open(owner.Tell("open"), kOwner, kLife, &segments);
  EXPECT_EQ(segments.bytes(), 2 * kBytes);
  EXPECT_EQ(SegmentsMapped(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(CopyMapped(*memory, &into)));
  ASSERT_TRUE(CopyMapped(*again, &into).ok());
  ExpectBytes(into, 2);
  memory = nullptr;
  EXPECT_EQ(segments.bytes(), 2 * kBytes);
  ASSERT_TRUE(CopyMapped(*again, &into).ok());
  ExpectBytes(into, 2);
}

TEST(GrantsTest, AMappingOfAnOwnerThatIsGoneDoesNotCount) {
  auto owner = std::make_unique<Child>(Obey);
  owner->Tell("share");
  MappedSegments segments;
  auto memory = *GrantedMemory::Open(owner->Tell("open"), kOwner, kLife, &segments);
  owner.reset();
  std::vector<char> into;
  EXPECT_TRUE(absl::IsUnavailable(CopyMapped(*memory, &into)));
  memory = nullptr;
  EXPECT_EQ(segments.bytes(), 0u);
}

// Whose descriptor is not the segment's is read by the kernel.
TEST(GrantsTest, AChildOfTheReaderHasNoMapping) {
  Child owner(Obey);
  owner.Tell("share");
  MappedSegments segments;
  const auto memory = *GrantedMemory::Open(owner.Tell("open"), kOwner, kLife, &segments);
  ASSERT_EQ(SegmentsMapped(), 1u);
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(SegmentsMapped()));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(GrantsTest, NothingButASegmentIsMapped) {
  Child owner(Obey);
  owner.Tell("share");
  MappedSegments segments;
  std::vector<char> into;
  EXPECT_FALSE((*OpenGrant(owner.Tell("open")))->mapped()) << "nobody maps for it";
  owner.Tell("close");
  const auto memory = *GrantedMemory::Open(owner.Tell("open"), kOwner, kLife, &segments);
  EXPECT_FALSE(memory->mapped());
  EXPECT_EQ(segments.bytes(), 0u);
  ASSERT_TRUE(Read(*memory, &into).ok());
  ExpectBytes(into, 2);
  Child plain(Obey);
  EXPECT_FALSE((*GrantedMemory::Open(plain.Tell("open"), kOwner, kLife, &segments))->mapped());
}

TEST(GrantsTest, ManySpansAtEitherEndAreSeveralParts) {
  Child owner(Obey);
  const auto memory = OpenGrant(owner.Tell("open"));
  std::vector<ByteSpan> wanted, landing;
  for (uint64_t i = 0; i < 700; ++i) wanted.push_back({(i * 37 % 700) * 300, 100});
  for (uint64_t i = 0; i < 1000; ++i) landing.push_back({(i * 77 % 1000) * 71, 70});
  std::vector<char> into(71'000, '.');
  ASSERT_TRUE(
      ReadInto(**memory, Selection::Spans(wanted), 70'000, Selection::Spans(landing), &into).ok());
  for (uint64_t i = 0; i < 70'000; ++i) {
    ASSERT_EQ(into[landing[i / 70].offset + i % 70], ByteAt(wanted[i / 100].offset + i % 100, 1))
        << i;
  }
  EXPECT_EQ(std::count(into.begin(), into.end(), '.') >= 1000, true);
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(into[i * 71 + 70], '.') << i;
}

TEST(GrantsTest, WhatLiesOutsideIsNotRead) {
  Child owner(Obey);
  const auto memory = OpenGrant(owner.Tell("open"));
  for (const ByteSpan span :
       {ByteSpan{kBytes - 49, 50}, ByteSpan{kBytes + 1, 50}, ByteSpan{UINT64_MAX - 100, 50}}) {
    const std::vector<ByteSpan> behind = {span}, place = {{0, 50}};
    std::vector<char> into(50, '.');
    EXPECT_TRUE(absl::IsOutOfRange(
        ReadInto(**memory, Selection::Spans(behind), 50, Selection::Spans(place), &into)));
    EXPECT_EQ(into, std::vector<char>(50, '.'));
  }
}

TEST(GrantsTest, MemoryThatIsGoneIsNotRead) {
  std::vector<char> into;
  for (const bool ended : {true, false}) {
    Child owner(Obey);
    const auto memory = OpenGrant(owner.Tell("open"));
    if (ended) owner.Tell("end");
    owner.Tell("munmap");
    const absl::Status read = Read(**memory, &into);
    EXPECT_EQ(read.code(), ended ? absl::StatusCode::kUnavailable : absl::StatusCode::kDataLoss);
  }
}

TEST(GrantsTest, AnOwnerThatWasKilledIsGone) {
  auto owner = std::make_unique<Child>(Obey);
  const std::string text = owner->Tell("open");
  const auto memory = OpenGrant(text);
  kill(owner->pid(), SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(owner->pid()), &info, WEXITED | WNOWAIT);
  std::vector<char> into;
  EXPECT_TRUE(absl::IsUnavailable(Read(**memory, &into))) << "it is a zombie";
  owner.reset();
  EXPECT_TRUE(absl::IsUnavailable(Read(**memory, &into)));
  EXPECT_FALSE(OpenGrant(text).ok());
}

std::string WithPid(const std::string& text, int64_t pid) {
  Grant grant = *ReadGrant(text);
  grant.pid = pid;
  return WriteGrant(grant);
}

// Who has the number of an owner is not the owner: neither its child, which has its memory and its
// files, nor another worker.
TEST(GrantsTest, AnotherProcessIsNotTakenForTheOwner) {
  Child owner(Obey), other(Obey, "/job:other/replica:0/task:0");
  const std::string text = owner.Tell("open"), others = other.Tell("open");
  const int64_t child = std::stoll(owner.Tell("fork"));
  EXPECT_TRUE(absl::IsUnavailable(OpenGrant(WithPid(text, child)).status()));
  EXPECT_TRUE(absl::IsUnimplemented(OpenGrant(WithPid(text, other.pid())).status()));
  EXPECT_TRUE(absl::IsUnimplemented(OpenGrant(WithPid(text, getpid())).status()));
  // A worker that names another one's grant, or that life of its own which is over.
  const absl::Status lie = OpenGrant(others).status();
  EXPECT_TRUE(absl::IsUnimplemented(lie)) << lie;
  EXPECT_TRUE(absl::StrContains(lie.message(), "another worker's")) << lie;
  EXPECT_TRUE(absl::IsUnimplemented(GrantedMemory::Open(text, kOwner, kLife + 1).status()));
  EXPECT_TRUE(OpenGrant(text).ok());
}

// Nor is any other file opened, whatever an owner says.
TEST(GrantsTest, NoOtherFileIsOpened) {
  char path[] = "/tmp/grantsXXXXXX";
  const OwnedFd file(mkstemp(path)), watch(inotify_init1(IN_NONBLOCK));
  ASSERT_GE(inotify_add_watch(watch.get(), path, IN_OPEN), 0);
  const Grant grant = {getpid(), file.get(), 0, {1, 1}};
  EXPECT_TRUE(absl::IsUnimplemented(OpenGrant(WriteGrant(grant)).status()));
  char events[1024];
  EXPECT_LT(read(watch.get(), events, sizeof(events)), 0) << "it was opened";
  EXPECT_EQ(errno, EAGAIN);
  unlink(path);
}

TEST(GrantsTest, NobodyReadsAnotherUsersMemory) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  const auto tries = [](Owned* owned, const std::string& told) -> std::string {
    return told == "open"
               ? owned->Open(1)
               : absl::StrCat(OpenGrant(told).status().code() == absl::StatusCode::kUnimplemented);
  };
  signal(SIGPIPE, SIG_IGN);
  Child mine(tries), theirs(tries, kOwner, kNobody);
  if (theirs.Tell("open").empty()) GTEST_SKIP() << "needs to become another user";
  EXPECT_EQ(theirs.Tell(mine.Tell("open")), "1");
  EXPECT_EQ(mine.Tell(theirs.Tell("open")), "1") << "root could, and does not";
  Child also_mine(tries);
  EXPECT_EQ(also_mine.Tell(mine.Tell("open")), "0");
}

// As a container's seccomp profile or yama has it.
TEST(GrantsTest, AKernelThatRefusesIsAskedOnce) {
  Child owner(Obey);
  Child reader([](Owned*, const std::string& text) {
    std::string said = "none";
    (void)RunWhereCallFails(SYS_process_vm_readv, EPERM,
                            [&] { said = OpenGrant(text).status().ToString(); });
    return said;
  });
  const std::string said = reader.Tell(owner.Tell("open"));
  if (said == "none") GTEST_SKIP() << "needs seccomp";
  EXPECT_TRUE(absl::StrContains(said, "UNIMPLEMENTED")) << said;
  EXPECT_TRUE(absl::StrContains(said, "process_vm_readv: Operation not permitted")) << said;
}

TEST(GrantsTest, WhatIsNoGrantIsRefused) {
  for (const char* const text :
       {"", "1", "1 2 3 4", "1 2 3 4 5 6", "-1 2 3 4 5", "0 2 3 4 5", "1 -2 3 4 5", "1 2 1024 4 5",
        "1 2 3 0 0", "x 2 3 4 5", "1 2 3 4 xyz", "99999999999999999999 2 3 4 5"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(OpenGrant(text).status())) << text;
  }
  EXPECT_TRUE(absl::IsUnimplemented(OpenGrant("9999999999 2 3 4 5").status()));
}

TEST(GrantsTest, SomeRegionsHaveNone) {
  GrantBook book(kOwner, kLife, "");
  char memory[8] = {};
  std::vector<std::unique_ptr<GrantBook::Opening>> openings;
  for (size_t i = 0; i < GrantFile::kSlots; ++i) {
    openings.push_back(*book.Open(memory, sizeof(memory)));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(book.Open(memory, sizeof(memory)).status()));
  openings[17].reset();
  EXPECT_TRUE(book.Open(memory, sizeof(memory)).ok());
  GrantBook none(kOwner, kLife, "because");
  EXPECT_EQ(none.Open(memory, sizeof(memory)).status(), absl::UnimplementedError("because"));
  GrantBook long_name(std::string(2000, 'x'), kLife, "");
  EXPECT_TRUE(absl::IsUnimplemented(long_name.Open(memory, sizeof(memory)).status()));
}

// The owner closes and writes over it while another process copies, which is stopped and killed at
// any moment. It never waits, and no byte from behind the end counts.
TEST(GrantsTest, NoReaderDelaysAnEndNorGetsWhatComesBehindIt) {
  struct Seen {
    std::atomic<int> round{0};
    std::atomic<uint64_t> copied{0}, closed{0}, wrong{0};
    char text[128];
  };
  BeReadDespiteYama();
  Seen* const seen = Shared<Seen>();
  GrantBook book(kOwner, kLife, "");
  std::vector<char> memory(kBytes, 1);
  const pid_t reader = fork();
  if (reader == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::vector<ByteSpan> all = {{0, 60'000}};
    std::vector<char> into(60'000);
    for (int round = 0;;) {
      if (seen->round.load() == round) continue;
      round = seen->round.load();
      const auto granted = OpenGrant(seen->text);
      if (!granted.ok()) continue;
      absl::Status read;
      do {
        read = ReadInto(**granted, Selection::Spans(all), 60'000, Selection(), &into);
        if (!read.ok()) break;
        ++seen->copied;
        if (memchr(into.data(), 2, into.size()) != nullptr) ++seen->wrong;
      } while (true);
      if (absl::IsUnavailable(read)) ++seen->closed;
    }
  }
  for (int round = 1; round <= 300; ++round) {
    memset(memory.data(), 1, kBytes);
    auto opening = *book.Open(memory.data(), kBytes);
    memcpy(seen->text, opening->text().c_str(), opening->text().size() + 1);
    seen->round.store(round);
    const uint64_t before = seen->copied.load();
    if (round < 200) {
      while (seen->copied.load() < before + 2) usleep(1);
    }
    if (round == 150) kill(reader, SIGSTOP);
    if (round == 250) kill(reader, SIGKILL);
    for (volatile int wait = 0; wait < round * 37 % 5000; ++wait) {
    }
    opening->End();
    memset(memory.data(), 2, kBytes);
    if (round == 150) kill(reader, SIGCONT);
  }
  waitpid(reader, nullptr, 0);
  EXPECT_EQ(seen->wrong.load(), 0u);
  EXPECT_GT(seen->closed.load(), 100u);
}

}  // namespace
}  // namespace tryst
