#ifndef TRYST_CHANNEL_OPS_SMALL_STORAGE_H_
#define TRYST_CHANNEL_OPS_SMALL_STORAGE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "rendezvous/tensor.h"

namespace tryst {

// Memory for tensors that came inside a message: small blocks that are reused. Only the poller
// thread takes blocks; any thread may give them back, cheapest the poller thread. The memory lives
// until the last tensor in it is gone, even after its channel and its poller. Lock-free. It grows
// to the most that was ever held at once, and stays so large.
class SmallStorage {
 public:
  static constexpr uint64_t kBytes = 128;

  // `taker`: the thread that is the poller thread now, or none. A thread that reads its own number
  // there is, and stays it for the call.
  explicit SmallStorage(std::shared_ptr<const std::atomic<std::thread::id>> taker)
      : taker_(std::move(taker)) {}
  // At least kBytes, aligned to 64.
  StorageRef Take();
  void Unref();  // Drops the owner's reference.

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

  const std::shared_ptr<const std::atomic<std::thread::id>> taker_;
  Piece* free_ = nullptr;                  // Poller thread only.
  std::atomic<Piece*> returned_{nullptr};  // Returned by other threads; taken all at once.
  std::deque<Piece> pieces_;
  std::atomic<uint64_t> refs_{1};
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_OPS_SMALL_STORAGE_H_
