#include "verbs/soft/soft_hand.h"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace tryst {
namespace {

// How long a helper looks for room, or for bytes, before it leaves that to epoll.
constexpr int64_t kPatienceNs = 20'000;

int64_t NowNs() {
  static const SteadyClock clock;
  return clock.NowNs();
}

// Pins a region for one system call. ok() is false if the key opens nothing any more.
class PinScope {
 public:
  PinScope(SoftRegionTable* regions, const SoftPin& pin, uint64_t moved)
      : regions_(regions), needed_(pin.remote_key != 0) {
    if (!needed_) return;
    pinned_ =
        regions->PinRemote(pin.remote_key, pin.address + moved, pin.bytes - moved, pin.access);
  }
  ~PinScope() {
    if (pinned_ != nullptr) regions_->Unpin(pinned_);
  }
  PinScope(const PinScope&) = delete;
  PinScope& operator=(const PinScope&) = delete;
  bool ok() const { return !needed_ || pinned_ != nullptr; }

 private:
  SoftRegionTable* const regions_;
  const bool needed_;
  SoftRegionRecord* pinned_ = nullptr;
};

}  // namespace

void SoftHand::Give(Crew* crew, std::shared_ptr<SoftBell> bell, int64_t now_ns) {
  given_ = true;
  crew_ = crew;
  bell_ = std::move(bell);
  given_ns_ = now_ns;
  done_.store(false, std::memory_order_relaxed);
  idle_since_ns_ = 0;
  crew->Post(this);
}

void SoftHand::RunOnCrew() {
  // The completion queue may be gone as soon as this is done.
  const std::shared_ptr<SoftBell> bell = bell_;
  Work();
  done_.store(true, std::memory_order_seq_cst);
  bell->Ring();
}

void SoftHand::Hurry(int64_t now_ns) {
  if (!given_ || now_ns - given_ns_ < kHurryNs || !crew_->TakeBack(this)) return;
  Work();
  done_.store(true, std::memory_order_seq_cst);
}

void SoftHand::Recall() {
  if (!given_) return;
  stop_.store(true, std::memory_order_relaxed);
  if (!crew_->TakeBack(this)) {
    while (!done_.load(std::memory_order_seq_cst)) std::this_thread::yield();
  }
  stop_.store(false, std::memory_order_relaxed);
  given_ = false;
}

bool SoftHand::Stay(bool moved) {
  if (stop_.load(std::memory_order_relaxed)) return false;
  if (moved) {
    idle_since_ns_ = 0;
    return true;
  }
  const int64_t now_ns = NowNs();
  if (idle_since_ns_ == 0) idle_since_ns_ = now_ns;
  return now_ns - idle_since_ns_ < kPatienceNs;
}

void SoftSendHand::Set(SoftBatch* batch, SoftStream* stream, SoftRegionTable* regions,
                       const SoftPin& pin) {
  batch_ = batch;
  stream_ = stream;
  regions_ = regions;
  pin_ = pin;
  progress_ = SoftBatch::Progress::kSome;
  moved_ = false;
  revoked_ = false;
}

void SoftSendHand::Work() {
  size_t written = 0;
  do {
    const PinScope pin(regions_, pin_, 0);
    revoked_ = !pin.ok();
    if (revoked_) return;
    progress_ = batch_->WriteTo(stream_, &written);
    moved_ |= written > 0;
  } while (progress_ == SoftBatch::Progress::kSome && Stay(written > 0));
}

void SoftReceiveHand::Set(SoftStream* stream, SoftRegionTable* regions, const SoftPin& pin,
                          const iovec& payload, const iovec& rest) {
  stream_ = stream;
  regions_ = regions;
  pin_ = pin;
  payload_ = payload;
  rest_ = rest;
  got_ = 0;
  lost_ = 0;
  revoked_ = false;
}

void SoftReceiveHand::Work() {
  ssize_t got = 0;
  do {
    const PinScope pin(regions_, pin_, got_);
    revoked_ = !pin.ok();
    if (revoked_) return;
    const iovec places[2] = {
        {static_cast<uint8_t*>(payload_.iov_base) + got_, payload_.iov_len - got_}, rest_};
    got = stream_->Receive(places, 2);
    if (got > 0) {
      got_ += static_cast<size_t>(got);
      if (got_ >= payload_.iov_len) return;
    } else if (got == 0 || errno != EAGAIN) {
      lost_ = got == 0 ? ECONNRESET : errno;
      return;
    }
  } while (Stay(got > 0));
}

}  // namespace tryst
