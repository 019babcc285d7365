#include "channel/shm/references.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

// How many segments may wait for their index: the socket can be this far ahead of the ring.
constexpr size_t kMostEarly = 64;

constexpr int kReferencesPerTurn = 8;

}  // namespace

// ---- The producer's list ----

GivenReferences::GivenReferences(std::shared_ptr<LocalSocket> socket,
                                 std::shared_ptr<SharedMemory> memory,
                                 const shm_wire::LinkSizes& sizes)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      sizes_(sizes),
      view_(memory_->data(), sizes),
      nothing_(static_cast<uint16_t>(sizes.references)),
      entries_(sizes.references + 1) {
  free_.reserve(sizes.references);
  for (uint32_t i = sizes.references; i-- > 0;) free_.push_back(static_cast<uint16_t>(i));
}

void GivenReferences::Give(StorageRef storage, uint64_t charge, uint16_t* reference,
                           uint16_t* generation) {
  *reference = free_.back();
  free_.pop_back();
  Entry& entry = entries_[*reference];
  entry.storage = std::move(storage);
  entry.charge = charge;
  entry.is_part = false;
  charged_bytes_ += charge;
  *generation = ++entry.generation;
}

void GivenReferences::GivePart(StorageRef storage, uint16_t* reference, uint16_t* generation) {
  Give(std::move(storage), 0, reference, generation);
  entries_[*reference].is_part = true;
}

void GivenReferences::TakeBack(uint16_t reference) {
  Entry& entry = entries_[reference];
  charged_bytes_ -= entry.charge;
  const StorageRef storage = std::move(entry.storage);
  entry.storage = StorageRef();
  free_.push_back(reference);
}

absl::StatusOr<int> GivenReferences::TakeReturned() {
  int count = 0;
  // Never more than can be out, so that a hostile consumer cannot keep us here.
  for (; count < static_cast<int>(sizes_.references); ++count) {
    const uint64_t word =
        view_.releases[next_return_ & (sizes_.references - 1)].load(std::memory_order_acquire);
    if (static_cast<uint32_t>(word >> 32) != next_return_ + 1) break;
    ++next_return_;
    const uint16_t reference = std::min(static_cast<uint16_t>(word), nothing_);
    const uint16_t generation = static_cast<uint16_t>(word >> 16);
    if (WasDropped(reference, generation)) continue;
    if (!given(reference, generation)) {
      return absl::DataLossError(
          "the consumer broke the protocol: it returns a tensor that it does not hold");
    }
    TakeBack(reference);
  }
  return count;
}

void GivenReferences::DropAll() {
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].storage) TakeBack(static_cast<uint16_t>(i));
  }
}

void GivenReferences::DropParts() {
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].storage || !entries_[i].is_part) continue;
    TakeBack(static_cast<uint16_t>(i));
    entries_[i].was_dropped = true;
  }
}

// The consumer returns what it was given, once.
bool GivenReferences::WasDropped(uint16_t reference, uint16_t generation) {
  Entry& entry = entries_[reference];
  return entry.generation == generation && std::exchange(entry.was_dropped, false);
}

bool GivenReferences::Over() {
  auto received = LocalSocket::Received::kPacket;
  for (int i = 0; i < kReferencesPerTurn && received == LocalSocket::Received::kPacket; ++i) {
    shm_wire::Packet packet;
    OwnedFd fd;
    received = socket_->Receive(&packet, &fd);
  }
  if (received == LocalSocket::Received::kEnd || !TakeReturned().ok()) DropAll();
  return held() == 0;
}

// ---- What the consumer holds ----

class HeldReferences::Held final : public Storage {
 public:
  Held(HeldReferences* owner, Segment* segment, const shm_wire::Placed& placed, uint64_t bytes)
      : Storage(segment->memory->data() + placed.offset, bytes, Space(*segment, placed),
                /*read_only=*/true),
        owner_(owner),
        segment_(segment),
        reference_(placed.reference),
        generation_(placed.reference_generation) {}
  ~Held() override = default;

 private:
  static MemorySpace Space(const Segment& segment, const shm_wire::Placed& placed) {
    MemorySpace space;
    space.kind = MemorySpace::Kind::kShared;
    space.segment_id = segment.id;
    space.segment_offset = placed.offset;
    return space;
  }
  void OnUnused() override {
    HeldReferences* owner = owner_;
    const uint16_t reference = reference_;
    const uint16_t generation = generation_;
    const uint64_t its_bytes = bytes();
    Segment* segment = segment_;
    this->~Held();  // The next one is constructed in the same place.
    segment->views.fetch_sub(1, std::memory_order_release);
    owner->Return(reference, generation, its_bytes);
    owner->Unref();
  }

  HeldReferences* const owner_;
  Segment* const segment_;
  const uint16_t reference_;
  const uint16_t generation_;
};

HeldReferences::HeldReferences(std::shared_ptr<LocalSocket> socket,
                               std::unique_ptr<SharedMemory> memory,
                               const shm_wire::LinkSizes& sizes,
                               std::shared_ptr<SegmentWatcher> watcher)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      sizes_(sizes),
      view_(memory_->data(), sizes),
      watcher_(std::move(watcher)),
      room_(new uint8_t[sizes.references * sizeof(Held)]),
      in_use_(new std::atomic<bool>[sizes.references]) {
  static_assert(alignof(Held) <= alignof(std::max_align_t), "");
  for (uint32_t i = 0; i < sizes.references; ++i) in_use_[i].store(false);
}

void HeldReferences::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

absl::Status HeldReferences::AddSegment(const shm_wire::Packet& packet, OwnedFd fd) {
  if (packet.segment >= shm_wire::kMaxSegments || packet.segment > segments_.size() ||
      early_.size() == kMostEarly) {
    return absl::DataLossError(
        "the producer broke the protocol: it sent a segment of shared memory with a wrong number");
  }
  if (has_segment(packet.segment)) {
    early_.emplace_back(packet, std::move(fd));
    return absl::OkStatus();
  }
  if (packet.segment_bytes > shm_wire::kMaxMappedBytes - mapped_bytes_) {
    return absl::DataLossError(
        "the producer broke the protocol: it sent more shared memory than may be mapped from one "
        "producer (4 TiB)");
  }
  auto memory = SharedMemory::Map(std::move(fd), packet.segment_bytes, /*writable=*/false);
  if (!memory.ok()) return memory.status();
  auto segment = std::make_unique<Segment>();
  segment->memory = *std::move(memory);
  segment->id = packet.segment_id;
  if (watcher_ != nullptr) {
    watcher_->OnMapped(segment->memory->data(), segment->memory->bytes());
    segment->watcher = watcher_;
  }
  mapped_bytes_ += packet.segment_bytes;
  if (packet.segment == segments_.size()) segments_.emplace_back();
  segments_[packet.segment] = std::move(segment);
  return absl::OkStatus();
}

absl::Status HeldReferences::DropSegment(uint32_t index) {
  if (!has_segment(index))
    return absl::DataLossError(
        "the producer broke the protocol: it took back a segment of shared memory that it never "
        "sent");
  if (segments_[index]->views.load(std::memory_order_acquire) != 0) {
    return absl::DataLossError(
        "the producer broke the protocol: it took back a segment of shared memory whose tensors "
        "are still held here");
  }
  mapped_bytes_ -= segments_[index]->memory->bytes();
  segments_[index] = nullptr;
  for (auto early = early_.begin(); early != early_.end(); ++early) {
    if (early->first.segment != index) continue;
    const shm_wire::Packet packet = early->first;
    OwnedFd fd = std::move(early->second);
    early_.erase(early);
    return AddSegment(packet, std::move(fd));
  }
  return absl::OkStatus();
}

absl::StatusOr<StorageRef> HeldReferences::View(const shm_wire::Placed& placed, uint64_t bytes) {
  if (!has_segment(placed.segment)) {
    return absl::DataLossError(
        "the producer broke the protocol: a tensor lies in a segment of shared memory that it "
        "never sent");
  }
  Segment* segment = segments_[placed.segment].get();
  const uint64_t room = segment->memory->bytes();
  if (placed.offset > room || room - placed.offset < bytes) {
    return absl::DataLossError(
        "the producer broke the protocol: a tensor reaches over the end of its segment of shared "
        "memory");
  }
  if (placed.reference >= sizes_.references ||
      in_use_[placed.reference].load(std::memory_order_acquire)) {
    return absl::DataLossError(
        "the producer broke the protocol: it sent a tensor by a reference that is still in use");
  }
  in_use_[placed.reference].store(true, std::memory_order_relaxed);
  segment->views.fetch_add(1, std::memory_order_relaxed);
  Ref();
  return StorageRef::Own(new (room_.get() + placed.reference * sizeof(Held))
                             Held(this, segment, placed, bytes));
}

// Runs on any thread. It first takes a place in the ring, then fills it. There are never more
// entries under way than references, so none is overwritten.
void HeldReferences::Return(uint16_t reference, uint16_t generation, uint64_t bytes) {
  constexpr uint64_t kWakeBytes = 1 << 20;
  constexpr uint32_t kWakeCount = 64;
  if (ForkCount() != forks_) return;  // What a child drops, its parent may still read.
  in_use_[reference].store(false, std::memory_order_release);
  const uint32_t at = view_.header->releases_written.fetch_add(1, std::memory_order_acq_rel);
  view_.releases[at & (sizes_.references - 1)].store(
      (uint64_t{at} + 1) << 32 | uint64_t{generation} << 16 | reference, std::memory_order_seq_cst);
  // Wakes a sleeping producer if it waits for room, or if much was returned since it was last
  // woken.
  const bool much =
      bytes >= kWakeBytes || unannounced_.fetch_add(1, std::memory_order_relaxed) + 1 >= kWakeCount;
  std::atomic<uint32_t>& asleep = view_.header->producer_asleep;
  const uint32_t state = asleep.load(std::memory_order_seq_cst);
  if (state == shm_wire::kForRoomToo || (much && state == shm_wire::kForMessages)) {
    unannounced_.store(0, std::memory_order_relaxed);
    if (asleep.exchange(shm_wire::kAwake) != shm_wire::kAwake) socket_->Send(shm_wire::Packet());
  }
}

}  // namespace tryst
