#include "channel/rdma/landing_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "base/log.h"
#include "base/reached.h"

namespace tryst {
namespace {

constexpr int kSmallestBits = 12;
constexpr uint64_t kMostBytes = uint64_t{1} << 46;  // There are no classes for more.

}  // namespace

Landing::~Landing() {
  DropNotes();
  region_.reset();  // The NIC must not write where the next mmap() may be.
  munmap(data(), bytes());
}

void Landing::OnUnused() {
  EndKey();
  // Keeps the pool alive during the call: this may be the last reference to it.
  const std::shared_ptr<LandingPool> keep = std::move(keep_);
  pool_->Give(this);
}

// Class 2k is 3/4 of 2^(12 + k), rounded to pages; class 2k + 1 is 2^(12 + k).
uint64_t LandingPool::ClassBytes(size_t size_class) {
  const uint64_t power = uint64_t{1} << (kSmallestBits + size_class / 2);
  if (size_class % 2 == 1) return power;
  return std::max<uint64_t>(power / 4 * 3, 4096);
}

size_t LandingPool::ClassOf(uint64_t bytes) {
  const uint64_t wanted = std::max<uint64_t>(bytes, 1);
  const int bits = std::max(static_cast<int>(absl::bit_width(wanted - 1)), kSmallestBits);
  const size_t power_class = 2 * static_cast<size_t>(bits - kSmallestBits) + 1;
  return ClassBytes(power_class - 1) >= wanted ? power_class - 1 : power_class;
}

LandingPool::~LandingPool() {
  MutexLock lock(&mu_);
  TRYST_CHECK(lent_ == 0) << lent_ << " landings are still lent";
  TRYST_CHECK(waits_for_room_ == 0) << "a fetch waits for room still";
  for (auto& kept : kept_) {
    for (auto& [writer, landings] : kept) {
      for (Landing* landing : landings) delete landing;
    }
  }
}

StorageRef LandingPool::Take(uint64_t bytes, For what, uint64_t writer) {
  if (bytes > kMostBytes) return StorageRef();
  const size_t size_class = ClassOf(bytes);
  const uint64_t charge = ChargeOf(size_class);
  const bool beside = IsBeside(ClassBytes(size_class));
  std::vector<Landing*> evicted;
  bool make = false;
  Landing* landing = nullptr;
  {
    MutexLock lock(&mu_);
    if (what == For::kWaiting && (beside || !MayLendAhead(charge))) {
      TRYST_REACHED("sim: no landing for a tensor that is not sent");
      return StorageRef();
    }
    if (beside && large_is_lent_) {
      TRYST_REACHED("rare: no second landing that is larger than the cap");
      refused_ = true;
      return StorageRef();
    }
    if (beside) large_is_lent_ = true;
    const auto kept = kept_[size_class].find(writer);
    if (kept != kept_[size_class].end() && !kept->second.empty()) {
      landing = kept->second.back();
      kept->second.pop_back();
      kept_bytes_ -= charge;
    } else {
      if (!MakeWay(charge, what, &evicted)) return StorageRef();
      make = true;
      pinned_bytes_ += charge;
      pinned_bytes_most_ = std::max(pinned_bytes_most_, pinned_bytes_);
    }
    if (what == For::kWaiting) waiting_bytes_ += charge;
    ++lent_;
  }
  for (Landing* old : evicted) delete old;
  if (!make) {
    landing->Reuse();
    landing->keep_ = shared_from_this();
    return StorageRef::Own(landing);
  }
  StorageRef made = Make(size_class, writer);
  if (made) {
    AsLanding(made)->keep_ = shared_from_this();
  } else {
    MutexLock lock(&mu_);
    pinned_bytes_ -= charge;
    if (what == For::kWaiting) waiting_bytes_ -= charge;
    if (beside) large_is_lent_ = false;
    --lent_;
    refused_ = true;
  }
  return made;
}

// Writers come and go, so that each new one ends the entries of those that have nothing here.
void LandingPool::Keep(Landing* landing) {
  ByWriter& kept = kept_[landing->size_class_];
  if (!kept.contains(landing->writer_)) {
    absl::erase_if(kept, [](const auto& of_writer) { return of_writer.second.empty(); });
  }
  kept[landing->writer_].push_back(landing);
}

bool LandingPool::MayLendAhead(uint64_t bytes) const {
  return waits_for_room_.load() == 0 && waiting_bytes_ + bytes <= cap_bytes_ / 2;
}

bool LandingPool::MakeWay(uint64_t bytes, For what, std::vector<Landing*>* evicted) {
  uint64_t in_use = pinned_bytes_ - kept_bytes_;
  // Two of these never have room at one time.
  if (what == For::kReady && bytes > cap_bytes_ / 2) in_use -= waiting_bytes_;
  if (in_use + bytes > cap_bytes_) {
    TRYST_REACHED("sim: no room for a landing");
    refused_ = true;
    return false;
  }
  // Largest first, so that the fewest registrations are lost.
  for (size_t other = kClasses; other-- > 0 && pinned_bytes_ + bytes > cap_bytes_;) {
    for (auto& [writer, kept] : kept_[other]) {
      while (!kept.empty() && pinned_bytes_ + bytes > cap_bytes_) {
        evicted->push_back(kept.back());
        kept.pop_back();
        kept_bytes_ -= ClassBytes(other);
        pinned_bytes_ -= ClassBytes(other);
      }
    }
  }
  return true;
}

StorageRef LandingPool::Make(size_t size_class, uint64_t writer) {
  const uint64_t bytes = ClassBytes(size_class);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return StorageRef();
  auto region = nic_->RegisterRegion(memory, bytes, kLocalWrite | kRemoteWrite);
  if (!region.ok()) {
    TRYST_REACHED("sim: a landing is refused registration");
    TRYST_LOG(Warning) << "the NIC cannot register " << bytes
                       << " bytes of memory for arriving tensors: " << region.status();
    munmap(memory, bytes);
    return StorageRef();
  }
  return StorageRef::Own(new Landing(this, memory, bytes, size_class, writer, *std::move(region)));
}

void LandingPool::NoteDelivered(const StorageRef& storage) {
  if (storage.get() == nullptr || (pins() && storage->bytes() <= cap_bytes_)) return;
  Landing* const landing = dynamic_cast<Landing*>(storage.get());
  if (landing == nullptr || landing->pool_ != this) return;
  if (pins()) landing->region_.reset();
  bool tell = false;
  {
    MutexLock lock(&mu_);
    if (!std::exchange(landing->counts_, false)) return;
    EndCharge(*landing);
    tell = std::exchange(refused_, false);
  }
  if (tell) TellRoom();
}

void LandingPool::EndCharge(const Landing& landing) {
  pinned_bytes_ -= ChargeOf(landing.size_class_);
  if (IsBeside(landing.bytes())) large_is_lent_ = false;
}

void LandingPool::Give(Landing* landing) {
  const uint64_t charge = ChargeOf(landing->size_class_);
  bool tell = false;
  bool keep = landing->bytes() <= cap_bytes_;
  {
    MutexLock lock(&mu_);
    --lent_;
    if (landing->counts_) {
      if (!keep) EndCharge(*landing);
      tell = std::exchange(refused_, false);
    } else {
      keep &= pinned_bytes_ + charge <= cap_bytes_;
      landing->counts_ = keep;
      if (keep) pinned_bytes_ += charge;
    }
    if (keep) {
      Keep(landing);
      kept_bytes_ += charge;
    }
  }
  if (!keep) delete landing;
  if (tell) TellRoom();
}

bool LandingPool::TakeBudget(uint64_t bytes, For what) {
  std::vector<Landing*> evicted;
  {
    MutexLock lock(&mu_);
    if (what == For::kWaiting && !MayLendAhead(bytes)) return false;
    if (bytes > cap_bytes_ || !MakeWay(bytes, what, &evicted)) return false;
    pinned_bytes_ += bytes;
    pinned_bytes_most_ = std::max(pinned_bytes_most_, pinned_bytes_);
    if (what == For::kWaiting) waiting_bytes_ += bytes;
  }
  for (Landing* old : evicted) delete old;
  return true;
}

void LandingPool::GiveBudget(uint64_t bytes, For what) {
  bool tell = false;
  {
    MutexLock lock(&mu_);
    pinned_bytes_ -= bytes;
    if (what == For::kWaiting) waiting_bytes_ -= bytes;
    tell = std::exchange(refused_, false);
  }
  if (tell) TellRoom();
}

void LandingPool::EndWaiting(uint64_t bytes) {
  MutexLock lock(&mu_);
  waiting_bytes_ -= bytes;
}

void LandingPool::TellRoom() {
  MutexLock lock(&room_mu_);
  if (on_room_) on_room_();
}

void LandingPool::SetRoomCallback(absl::AnyInvocable<void()> on_room) {
  MutexLock lock(&room_mu_);
  on_room_ = std::move(on_room);
}

uint64_t LandingPool::pinned_bytes() const {
  MutexLock lock(&mu_);
  return pinned_bytes_;
}

uint64_t LandingPool::in_use_bytes() const {
  MutexLock lock(&mu_);
  return pinned_bytes_ - kept_bytes_;
}

bool LandingPool::large_is_lent() const {
  MutexLock lock(&mu_);
  return large_is_lent_;
}

size_t LandingPool::writers() const {
  MutexLock lock(&mu_);
  size_t sum = 0;
  for (const ByWriter& kept : kept_) sum += kept.size();
  return sum;
}

uint64_t LandingPool::waiting_bytes() const {
  MutexLock lock(&mu_);
  return waiting_bytes_;
}

uint64_t LandingPool::pinned_bytes_most() const {
  MutexLock lock(&mu_);
  return pinned_bytes_most_;
}

}  // namespace tryst
