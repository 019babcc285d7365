#include "channel/rdma/source_regions.h"

#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/reached.h"

namespace tryst {

// The kept regions. Eviction begins with the one that has not been sent from for longest,
// approximately: a region that was used since its last look gets a second chance.
struct SourceRegions::Book {
  // Makes room for `bytes`. False: the regions in use leave none.
  bool MakeRoom(uint64_t bytes, uint64_t max_bytes, size_t max_regions) ABSL_LOCKS_EXCLUDED(mu);
  void Add(Note* note, std::unique_ptr<Region> region) ABSL_LOCKS_EXCLUDED(mu);
  void Remove(Note* note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  Mutex mu;
  std::list<Note*> kept ABSL_GUARDED_BY(mu);
  uint64_t kept_bytes ABSL_GUARDED_BY(mu) = 0;
  uint64_t kept_ever ABSL_GUARDED_BY(mu) = 0;
  uint64_t evictions ABSL_GUARDED_BY(mu) = 0;
};

// The poller reads and writes it while the storage is referred to; afterwards the thread that
// releases the storage does. Its region and its place in the list change under the book's lock.
class SourceRegion::Note final : public StorageNote {
 public:
  Note(std::shared_ptr<SourceRegions::Book> book, uint64_t bytes)
      : StorageNote(book.get()), bytes(bytes), book_(std::move(book)) {}
  // Deregisters under the lock, so that a concurrent eviction has ended before the bytes go.
  ~Note() override {
    MutexLock lock(&book_->mu);
    TRYST_DCHECK(uses == 0);
    if (region != nullptr) book_->Remove(this);
  }

  const uint64_t bytes;
  std::unique_ptr<Region> region;  // Null: it was evicted, or its SourceRegions is gone.
  // The region's address and key, copied so that no call is needed.
  uint64_t address = 0;
  uint32_t local_key = 0;
  uint32_t uses = 0;
  bool sent = false;  // Whether it was used since its last look.
  std::list<Note*>::iterator place;

 private:
  const std::shared_ptr<SourceRegions::Book> book_;
};

SourceRegion& SourceRegion::operator=(SourceRegion&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  note_ = std::exchange(other.note_, nullptr);
  own_ = std::move(other.own_);
  address_ = other.address_;
  local_key_ = other.local_key_;
  return *this;
}

void SourceRegion::Reset() {
  if (note_ != nullptr) --std::exchange(note_, nullptr)->uses;
  own_.reset();
}

void SourceRegions::Book::Remove(Note* note) {
  kept.erase(note->place);
  kept_bytes -= note->bytes;
  note->region.reset();
}

bool SourceRegions::Book::MakeRoom(uint64_t bytes, uint64_t max_bytes, size_t max_regions) {
  if (bytes > max_bytes || max_regions == 0) return false;
  MutexLock lock(&mu);
  // Each region gets one second chance at most.
  for (size_t looks = 2 * kept.size(); kept_bytes + bytes > max_bytes || kept.size() >= max_regions;
       --looks) {
    if (looks == 0) return false;
    Note* const oldest = kept.front();
    if (oldest->uses > 0 || std::exchange(oldest->sent, false)) {
      kept.splice(kept.end(), kept, kept.begin());
      continue;
    }
    ++evictions;
    Remove(oldest);
  }
  return true;
}

void SourceRegions::Book::Add(Note* note, std::unique_ptr<Region> region) {
  note->address = region->address();
  note->local_key = region->local_key();
  MutexLock lock(&mu);
  note->region = std::move(region);
  note->place = kept.insert(kept.end(), note);
  kept_bytes += note->bytes;
  ++kept_ever;
}

SourceRegions::SourceRegions(Nic* nic, uint64_t max_bytes, size_t max_regions)
    : nic_(nic),
      max_bytes_(max_bytes),
      max_regions_(max_regions),
      book_(std::make_shared<Book>()) {}

SourceRegions::~SourceRegions() {
  MutexLock lock(&book_->mu);
  while (!book_->kept.empty()) book_->Remove(book_->kept.front());
}

absl::StatusOr<std::unique_ptr<Region>> SourceRegions::Register(const MemorySpace& space,
                                                                void* from, uint64_t bytes) {
  return space.host_readable()
             ? nic_->RegisterRegion(from, bytes, kLocalOnly)
             : nic_->RegisterDevice(space.device_ordinal, from, bytes, kLocalOnly);
}

// Null: it cannot be kept. Registering only the part that is sent may still work.
SourceRegions::Note* SourceRegions::Keep(Storage* storage) {
  if (!book_->MakeRoom(storage->bytes(), max_bytes_, max_regions_)) {
    TRYST_REACHED("sources: no room to keep a region");
    return nullptr;
  }
  auto region = Register(storage->space(), storage->data(), storage->bytes());
  if (!region.ok()) return nullptr;
  Note* note = static_cast<Note*>(storage->FindNote(book_.get()));
  if (note == nullptr) {
    auto made = std::make_unique<Note>(book_, storage->bytes());
    note = made.get();
    storage->AddNote(std::move(made));
  }
  book_->Add(note, *std::move(region));
  return note;
}

absl::StatusOr<SourceRegion> SourceRegions::Use(const Tensor& tensor) {
  Storage* const storage = tensor.storage().get();
  Note* note = static_cast<Note*>(storage->FindNote(book_.get()));
  if (note != nullptr && note->region != nullptr) {
    ++found_;
  } else {
    note = Keep(storage);
  }
  if (note == nullptr) {
    return UseAlone(storage->space(), const_cast<void*>(tensor.data()), tensor.bytes());
  }
  SourceRegion use;
  ++note->uses;
  note->sent = true;
  use.note_ = note;
  use.address_ = note->address + tensor.storage_offset();
  use.local_key_ = note->local_key;
  return use;
}

absl::StatusOr<SourceRegion> SourceRegions::UseOnce(const void* from, uint64_t bytes) {
  return UseAlone(MemorySpace(), const_cast<void*>(from), bytes);
}

absl::StatusOr<SourceRegion> SourceRegions::UseAlone(const MemorySpace& space, void* from,
                                                     uint64_t bytes) {
  auto region = Register(space, from, bytes);
  if (!region.ok()) return region.status();
  ++single_use_;
  SourceRegion use;
  use.address_ = (*region)->address();
  use.local_key_ = (*region)->local_key();
  use.own_ = *std::move(region);
  return use;
}

SourceRegionsCounters SourceRegions::counters() const {
  SourceRegionsCounters out;
  out.found = found_;
  out.single_use = single_use_;
  MutexLock lock(&book_->mu);
  out.kept_ever = book_->kept_ever;
  out.evictions = book_->evictions;
  out.kept_bytes = book_->kept_bytes;
  out.kept_regions = book_->kept.size();
  return out;
}

}  // namespace tryst
