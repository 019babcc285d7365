#ifndef TRYST_VERBS_SOFT_SOFT_HAND_H_
#define TRYST_VERBS_SOFT_SOFT_HAND_H_

#include <sys/eventfd.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/crew.h"
#include "verbs/soft/socket.h"
#include "verbs/soft/soft_batch.h"
#include "verbs/soft/soft_region_table.h"
#include "verbs/soft/soft_stream.h"

namespace tryst {

// From here on a system call takes much longer than a helper's coming.
inline constexpr uint64_t kHandedBytes = 128 << 10;

// Wakes a completion queue's thread when a helper has finished something for it. Thread-safe.
class SoftBell {
 public:
  SoftBell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int fd() const { return fd_.get(); }
  // From now on the next Ring() is heard. What was rung before is not: look for it afterwards.
  void Listen() { wanted_.store(true, std::memory_order_seq_cst); }
  void Ring() {
    if (wanted_.exchange(false, std::memory_order_seq_cst)) eventfd_write(fd_.get(), 1);
  }
  void Clear() const {
    eventfd_t ignored;
    eventfd_read(fd_.get(), &ignored);
  }

 private:
  const Fd fd_;
  std::atomic<bool> wanted_{false};
};

// The remote key that opens the memory that a call moves; 0: it needs none. The region is pinned
// for one system call at a time.
struct SoftPin {
  uint32_t remote_key = 0;
  uint32_t access = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// System calls on one socket, in one direction, that a helper makes for the completion queue's
// thread. While it is given, that thread touches neither this direction of the socket nor its
// buffers. Its methods are that thread's.
class SoftHand : private CrewTask {
 public:
  bool given() const { return given_; }
  // The helper has finished: TakeBack() is next.
  bool done() const { return given_ && done_.load(std::memory_order_seq_cst); }
  void Give(Crew* crew, std::shared_ptr<SoftBell> bell, int64_t now_ns);
  void TakeBack() { given_ = false; }
  // Makes the calls here if no helper has begun for kHurryNs.
  void Hurry(int64_t now_ns);
  // Waits until no helper has it, which takes one system call at most.
  void Recall();

 protected:
  ~SoftHand() = default;
  // Makes calls until all bytes are moved or none was for kPatience.
  virtual void Work() = 0;
  // Whether to try again when the socket had no room, or no bytes.
  bool Stay(bool moved);

 private:
  static constexpr int64_t kHurryNs = 1'000'000;

  void RunOnCrew() override;

  bool given_ = false;
  Crew* crew_ = nullptr;
  int64_t given_ns_ = 0;
  std::shared_ptr<SoftBell> bell_;
  std::atomic<bool> done_{false};
  std::atomic<bool> stop_{false};
  int64_t idle_since_ns_ = 0;  // The helper's.
};

// Sends a batch.
class SoftSendHand final : public SoftHand {
 public:
  // All outlive it. What it is set to stays until it is taken back.
  void Set(SoftBatch* batch, SoftStream* stream, SoftRegionTable* regions, const SoftPin& pin);
  SoftBatch::Progress progress() const { return progress_; }
  bool moved() const { return moved_; }
  bool revoked() const { return revoked_; }  // The memory is no longer open to the peer.

 private:
  void Work() override;

  SoftBatch* batch_ = nullptr;
  SoftStream* stream_ = nullptr;
  SoftRegionTable* regions_ = nullptr;
  SoftPin pin_;
  SoftBatch::Progress progress_ = SoftBatch::Progress::kSome;
  bool moved_ = false;
  bool revoked_ = false;
};

// Receives the rest of a payload, and what follows it as far as there is room.
class SoftReceiveHand final : public SoftHand {
 public:
  // `pin` is for the payload.
  void Set(SoftStream* stream, SoftRegionTable* regions, const SoftPin& pin, const iovec& payload,
           const iovec& rest);
  size_t got() const { return got_; }
  int lost() const { return lost_; }         // Not 0: the socket has ended, with this error.
  bool revoked() const { return revoked_; }  // The memory is no longer open to the peer.

 private:
  void Work() override;

  SoftStream* stream_ = nullptr;
  SoftRegionTable* regions_ = nullptr;
  SoftPin pin_;
  iovec payload_{};
  iovec rest_{};
  size_t got_ = 0;
  int lost_ = 0;
  bool revoked_ = false;
};

}  // namespace tryst

#endif  // TRYST_VERBS_SOFT_SOFT_HAND_H_
