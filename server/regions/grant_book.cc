#include "server/regions/grant_book.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tryst {
namespace {

constexpr size_t kMarksBytes = GrantFile::kSlots * sizeof(GrantMark);

absl::Status Failed(absl::string_view call) {
  return absl::UnimplementedError(
      absl::StrCat("its owner cannot make grants: ", call, ": ", strerror(errno)));
}

bool WriteAt(int fd, const void* bytes, size_t size, size_t at) {
  return pwrite(fd, bytes, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
}

// No other opening of any process has the same: of the kernel, as processes that fork have the
// state of other generators in common.
absl::Status MakeMark(GrantMark* mark) {
  return getrandom(mark, sizeof(*mark), 0) == sizeof(*mark) ? absl::OkStatus()
                                                            : Failed("getrandom");
}

}  // namespace

std::string WriteGrant(const Grant& grant) {
  return absl::StrFormat("%d %d %d %016x %016x", grant.pid, grant.fd, grant.slot, grant.mark[0],
                         grant.mark[1]);
}

absl::StatusOr<Grant> ReadGrant(absl::string_view text) {
  Grant grant;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  if (words.size() != 5 || !absl::SimpleAtoi(words[0], &grant.pid) ||
      !absl::SimpleAtoi(words[1], &grant.fd) || !absl::SimpleAtoi(words[2], &grant.slot) ||
      !absl::SimpleHexAtoi(words[3], &grant.mark[0]) ||
      !absl::SimpleHexAtoi(words[4], &grant.mark[1]) || grant.pid <= 0 || grant.fd < 0 ||
      grant.slot >= GrantFile::kSlots || grant.mark == GrantMark{}) {
    return absl::InvalidArgumentError(
        "its owner's grant cannot be read: run the same release on both workers");
  }
  return grant;
}

void GrantBook::Mark::Clear() {
  for (std::atomic<uint64_t>& word : words) word.store(0, std::memory_order_relaxed);
  __sync_synchronize();  // As std::atomic_thread_fence(), which GCC refuses to build for TSan.
}

void GrantBook::Opening::End() {
  if (ended_.exchange(true)) return;
  book_->marks_[slot_].Clear();
  MutexLock lock(&book_->mu_);
  book_->free_.push_back(slot_);
}

GrantBook::GrantBook(std::string worker, uint64_t incarnation, std::string refuses)
    : worker_(std::move(worker)), incarnation_(incarnation) {
  if (!refuses.empty()) refuses_ = absl::UnimplementedError(refuses);
}

void GrantBook::Stop() {
  MutexLock lock(&mu_);
  refuses_ = absl::UnavailableError("its owner stops");
  find_ = nullptr;
  for (size_t slot = 0; marks_ != nullptr && slot < GrantFile::kSlots; ++slot) marks_[slot].Clear();
}

GrantBook::~GrantBook() {
  if (marks_ != nullptr) munmap(marks_, kMarksBytes);
}

absl::Status GrantBook::Make() {
  GrantFile head = {};
  head.version = kGrantFileVersion;
  head.incarnation = incarnation_;
  if (worker_.size() >= sizeof(head.worker)) {
    return absl::UnimplementedError("its owner has too long a name for grants");
  }
  memcpy(head.worker, worker_.data(), worker_.size());
  void* const marks =
      mmap(nullptr, kMarksBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (marks == MAP_FAILED) return Failed("mmap");
  head.marks = reinterpret_cast<uint64_t>(marks);
  OwnedFd file(memfd_create(GrantFile::kName, MFD_CLOEXEC));
  const bool made = madvise(marks, kMarksBytes, MADV_WIPEONFORK) == 0 && file.valid() &&
                    WriteAt(file.get(), &head, sizeof(head), 0);
  if (!made) {
    absl::Status failed = Failed("memfd_create, madvise");
    munmap(marks, kMarksBytes);
    return failed;
  }
  marks_ = static_cast<Mark*>(marks);
  file_ = std::move(file);
  for (size_t slot = GrantFile::kSlots; slot > 0; --slot) free_.push_back(slot - 1);
  return absl::OkStatus();
}

void GrantBook::SetFindShared(FindShared find) {
  MutexLock lock(&mu_);
  find_ = std::move(find);
}

GrantBook::Shared GrantBook::Find(const void* memory, uint64_t bytes) const {
  Shared found = find_ ? find_(memory) : Shared();
  if (found.segment == nullptr || found.segment->fd() < 0 ||
      found.offset > found.segment->bytes() || bytes > found.segment->bytes() - found.offset) {
    return {};
  }
  return found;
}

absl::StatusOr<std::unique_ptr<GrantBook::Opening>> GrantBook::Open(const void* memory,
                                                                    uint64_t bytes) {
  GrantMark mark = {};
  const absl::Status marked = MakeMark(&mark);
  if (!marked.ok()) return marked;
  MutexLock lock(&mu_);
  if (refuses_.ok() && marks_ == nullptr) refuses_ = Make();
  if (!refuses_.ok()) return refuses_;
  if (free_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("its owner has ", GrantFile::kSlots, " regions with grants already"));
  }
  const size_t slot = free_.back();
  const GrantFile::Slot written = {reinterpret_cast<uint64_t>(memory), bytes, mark};
  Shared shared = Find(memory, bytes);
  GrantFile::Place place = {};
  if (shared.segment != nullptr) {
    place = {shared.segment->fd(), shared.segment->bytes(), shared.offset};
  }
  if (!WriteAt(file_.get(), &place, sizeof(place), GrantFile::PlaceAt(slot)) ||
      !WriteAt(file_.get(), &written, sizeof(written), GrantFile::SlotAt(slot))) {
    return Failed("pwrite");
  }
  free_.pop_back();
  for (size_t i = 0; i < mark.size(); ++i) {
    marks_[slot].words[i].store(mark[i], std::memory_order_release);
  }
  return std::unique_ptr<Opening>(new Opening(
      this, slot, WriteGrant({getpid(), file_.get(), slot, mark}), std::move(shared.segment)));
}

}  // namespace tryst
