#include "server/regions/granted_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/stream_copy.h"

namespace tryst {
namespace {

absl::Status Closed() {
  return absl::UnavailableError("the region was closed, or its owner has ended");
}

absl::Status NoGrant(absl::string_view why) { return absl::UnimplementedError(why); }

// The kernel did not let us.
absl::Status Refused(absl::string_view call) {
  if (errno == ESRCH) return Closed();
  return NoGrant(absl::StrCat("the kernel does not let this process read the owner's memory: ",
                              call, ": ", strerror(errno)));
}

constexpr char kSegmentName[] = "tryst";  // SharedMemory's.

// Whether the link is to a memfd of that name. So nothing else is ever opened.
bool IsMemfd(const std::string& path, absl::string_view name) {
  const std::string wanted = absl::StrCat("/memfd:", name, " (deleted)");
  std::string target(wanted.size() + 1, '\0');
  const ssize_t size = readlink(path.c_str(), &target[0], target.size());
  return size == static_cast<ssize_t>(wanted.size()) &&
         target.compare(0, wanted.size(), wanted) == 0;
}

bool ReadAt(int fd, void* bytes, size_t size, size_t at) {
  return pread(fd, bytes, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
}

absl::StatusOr<OwnedFd> OpenFile(int64_t pid, int64_t fd, absl::string_view name) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  if (!IsMemfd(path, name)) {
    return NoGrant("its process is not on this host, of another user, or in another pid namespace");
  }
  OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return Refused("open");
  struct stat found {};
  // The link may have become another one meanwhile.
  if (!IsMemfd(absl::StrCat("/proc/self/fd/", file.get()), name) ||
      fstat(file.get(), &found) != 0 || found.st_uid != geteuid()) {
    return NoGrant("its process belongs to another user");
  }
  return file;
}

// The segment in which the region lies. Null: it lies in none, or cannot be mapped.
std::shared_ptr<const SharedMemory> MapSegment(const Grant& grant, uint64_t bytes,
                                               const GrantFile::Place& place,
                                               MappedSegments* segments) {
  if (place.bytes == 0 || place.offset > place.bytes || bytes > place.bytes - place.offset) {
    return nullptr;
  }
  auto file = OpenFile(grant.pid, place.fd, kSegmentName);
  if (!file.ok()) return nullptr;
  auto mapped = segments->Map(*std::move(file), place.bytes);
  return mapped.ok() ? *std::move(mapped) : nullptr;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const GrantedMemory>> GrantedMemory::Open(absl::string_view text,
                                                                         absl::string_view worker,
                                                                         uint64_t incarnation,
                                                                         MappedSegments* segments) {
  const auto grant = ReadGrant(text);
  if (!grant.ok()) return grant.status();
  if (grant->pid > std::numeric_limits<pid_t>::max()) return NoGrant("there is no such process");
  const auto file = OpenFile(grant->pid, grant->fd, GrantFile::kName);
  if (!file.ok()) return file.status();
  GrantFile head = {};
  GrantFile::Slot slot = {};
  if (!ReadAt(file->get(), &head, sizeof(head), 0) || head.version != kGrantFileVersion ||
      !ReadAt(file->get(), &slot, sizeof(slot), GrantFile::SlotAt(grant->slot))) {
    return NoGrant("its owner is of another release");
  }
  head.worker[sizeof(head.worker) - 1] = '\0';
  if (head.incarnation != incarnation || worker != head.worker) {
    return NoGrant("the process that it names is another worker's");
  }
  if (slot.mark != grant->mark) return Closed();
  const std::shared_ptr<GrantedMemory> memory(new GrantedMemory());
  memory->pid_ = static_cast<pid_t>(grant->pid);
  memory->address_ = slot.address;
  memory->bytes_ = slot.bytes;
  memory->mark_address_ = head.marks + grant->slot * sizeof(GrantMark);
  memory->mark_ = slot.mark;
  GrantFile::Place place = {};
  if (segments != nullptr &&
      ReadAt(file->get(), &place, sizeof(place), GrantFile::PlaceAt(grant->slot))) {
    memory->segment_ = MapSegment(*grant, slot.bytes, place, segments);
  }
  if (memory->segment_ != nullptr) memory->data_ = memory->segment_->data() + place.offset;
  // If it is open now, then what was opened by its number is the segment of this opening.
  absl::Status tried = memory->StillOpen();
  if (!tried.ok()) return tried;
  return std::shared_ptr<const GrantedMemory>(memory);
}

std::shared_ptr<const GrantedMemory> GrantedMemory::Unmapped() const {
  const std::shared_ptr<GrantedMemory> memory(new GrantedMemory(*this));
  memory->segment_ = nullptr;
  memory->data_ = nullptr;
  return memory;
}

bool GrantedMemory::Plan(const Selection& wanted, const Selection& landing, void* into,
                         uint64_t left, SelectionPlace* from, SelectionPlace* to,
                         GrantedPart* part) const {
  const SelectionPlace begin = *from;
  uint64_t comes = 0;
  part->theres = part->heres = 0;
  while (comes < left && part->theres < GrantedPart::kMaxSpans) {
    const ByteSpan span = NextSpan(wanted, left - comes, from);
    if (span.offset > bytes_ || span.bytes > bytes_ - span.offset) return false;
    part->there[part->theres++] = {reinterpret_cast<void*>(address_ + span.offset), span.bytes};
    comes += span.bytes;
  }
  uint64_t lands = 0;
  while (lands < comes && part->heres < GrantedPart::kMaxSpans) {
    const ByteSpan span = NextSpan(landing, comes - lands, to);
    part->here[part->heres++] = {static_cast<char*>(into) + span.offset, span.bytes};
    lands += span.bytes;
  }
  if (lands < comes) {  // The shorter spans are here: less comes.
    *from = begin;
    SkipBytes(wanted, lands, from);
    while (comes - part->there[part->theres - 1].iov_len >= lands) {
      comes -= part->there[--part->theres].iov_len;
    }
    part->there[part->theres - 1].iov_len -= comes - lands;
  }
  part->bytes = lands;
  return true;
}

namespace {

// From `*from` of memory, of which `data` is the byte at `begins`, to `*to` of `into`.
void CopyBetween(const Selection& wanted, const uint8_t* data, uint64_t begins,
                 const Selection& landing, void* into, uint64_t bytes, bool streams,
                 SelectionPlace* from, SelectionPlace* to) {
  ByteSpan there, here;
  uint64_t comes = bytes, lands = bytes;  // Their spans are not known yet.
  while (bytes > 0) {
    if (there.bytes == 0) {
      there = NextSpan(wanted, comes, from);
      comes -= there.bytes;
    }
    if (here.bytes == 0) {
      here = NextSpan(landing, lands, to);
      lands -= here.bytes;
    }
    const uint64_t size = std::min(there.bytes, here.bytes);
    CopyPart(static_cast<char*>(into) + here.offset, data + (there.offset - begins), size, streams);
    there = {there.offset + size, there.bytes - size};
    here = {here.offset + size, here.bytes - size};
    bytes -= size;
  }
  if (streams) FinishStreams();
}

}  // namespace

void GrantedMemory::Copy(const Selection& wanted, const Selection& landing, void* into,
                         uint64_t bytes, bool streams, SelectionPlace* from,
                         SelectionPlace* to) const {
  CopyBetween(wanted, data_, 0, landing, into, bytes, streams, from, to);
}

absl::Status GrantedMemory::ReadRange(const Selection& wanted, const Selection& landing, void* into,
                                      uint64_t bytes, const ByteSpan& range, uint8_t* room) const {
  GrantedPart part;
  part.there[part.theres++] = {reinterpret_cast<void*>(address_ + range.offset), range.bytes};
  part.here[part.heres++] = {room, range.bytes};
  part.bytes = range.bytes;
  absl::Status came = Read(&part);
  if (!came.ok()) return came;
  SelectionPlace from, to;
  CopyBetween(wanted, room, range.offset, landing, into, bytes, /*streams=*/false, &from, &to);
  return absl::OkStatus();
}

absl::Status GrantedMemory::StillOpen() const {
  __sync_synchronize();  // What was copied was read before the mark is.
  GrantedPart none;
  return Read(&none);
}

absl::Status GrantedMemory::Read(GrantedPart* part) const {
  GrantMark mark = {};
  // The kernel reads in this order, all of it of the process that has the number now. So if the
  // mark is there at last, that is the owner, and has not closed the region before that.
  part->there[part->theres] = {reinterpret_cast<void*>(mark_address_), sizeof(mark)};
  part->here[part->heres] = {&mark, sizeof(mark)};
  const ssize_t got =
      process_vm_readv(pid_, part->here, part->heres + 1, part->there, part->theres + 1, 0);
  if (got == static_cast<ssize_t>(part->bytes + sizeof(mark))) {
    return mark == mark_ ? absl::OkStatus() : Closed();
  }
  if (got < 0 && errno != EFAULT) return Refused("process_vm_readv");
  if (part->bytes == 0) return Closed();
  // Either the memory is gone, or the kernel cannot read it, as that of a device.
  absl::Status open = StillOpen();
  if (!open.ok()) return open;
  return absl::DataLossError("the kernel cannot read the region's memory");
}

}  // namespace tryst
