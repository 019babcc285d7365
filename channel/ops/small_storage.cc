#include "channel/ops/small_storage.h"

namespace tryst {

StorageRef SmallStorage::Take() {
  if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  Piece* piece = free_;
  if (piece == nullptr) {
    pieces_.emplace_back(this);
    piece = &pieces_.back();
  } else {
    free_ = piece->next;
    piece->Lend();
  }
  refs_.fetch_add(1, std::memory_order_relaxed);
  return StorageRef::Own(piece);
}

void SmallStorage::Give(Piece* piece) {
  if (taker_->load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    piece->next = free_;
    free_ = piece;
  } else {
    Piece* head = returned_.load(std::memory_order_relaxed);
    do {
      piece->next = head;
    } while (!returned_.compare_exchange_weak(head, piece, std::memory_order_release,
                                              std::memory_order_relaxed));
  }
  Unref();
}

void SmallStorage::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace tryst
