#ifndef TRYST_CHANNEL_SHM_SMALL_STORAGE_H_
#define TRYST_CHANNEL_SHM_SMALL_STORAGE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>

#include "channel/shm/wire.h"
#include "rendezvous/tensor.h"

namespace tryst {

// Where tensors that came inside a message live: small pieces of heap that are used again.
// Taken by one thread at a time, the poller's; given back on any, cheapest on that one. Counted by
// what it has lent, so that it outlives its channel for as long as a tensor does. Lock-free; grows
// to the most that was ever held at once.
class SmallStorage {
 public:
  static constexpr uint64_t kBytes = shm_wire::InlineRoom(0);

  SmallStorage() = default;
  // At least kBytes, aligned to 64.
  StorageRef Take();
  void Unref();  // The owner's reference.

 private:
  class alignas(64) Piece final : public Storage {
   public:
    explicit Piece(SmallStorage* owner) : Storage(bytes_, kBytes, MemorySpace{}), owner_(owner) {}
    ~Piece() override = default;
    void Lend() { Reuse(); }
    Piece* next = nullptr;

   private:
    void OnUnused() override { owner_->Give(this); }
    SmallStorage* const owner_;
    alignas(64) uint8_t bytes_[(kBytes + 63) / 64 * 64];
  };
  ~SmallStorage() = default;
  void Give(Piece* piece);

  std::atomic<std::thread::id> taker_{};   // Who took last.
  Piece* free_ = nullptr;                  // The taker's.
  std::atomic<Piece*> returned_{nullptr};  // By other threads; taken all at once.
  std::deque<Piece> pieces_;
  std::atomic<uint64_t> refs_{1};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_SHM_SMALL_STORAGE_H_
