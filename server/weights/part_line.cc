#include "server/weights/part_line.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tryst {

PartLine::PartLine(const Limits& limits, Executor* executor, MakeFn make)
    : limits_(limits),
      executor_(executor),
      make_(std::move(make)),
      parked_(std::make_shared<ParkedAsks>(limits.waiting, limits.waiting_of_one)) {}

void PartLine::Enter(AskOfPeer ask) {
  ask.bytes = std::max(ask.bytes, limits_.least);
  parked_->Park(std::move(ask));
  Go();
}

void PartLine::Close(absl::Status why) {
  {
    MutexLock lock(&mu_);
    closed_ = std::move(why);
  }
  Go();
}

uint64_t PartLine::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

PartLine::Room PartLine::Take(const AskOfPeer& ask) {
  MutexLock lock(&mu_);
  if (bytes_ > 0 && bytes_ + ask.bytes > limits_.bytes) return Room::kNot;
  uint64_t& of_peer = bytes_of_[ask.peer];
  if (of_peer > 0 && of_peer + ask.bytes > limits_.bytes_of_one) return Room::kNotForThisPeer;
  of_peer += ask.bytes;
  bytes_ += ask.bytes;
  if (of_peer == 0) bytes_of_.erase(ask.peer);
  return Room::kYes;
}

void PartLine::Give(const std::string& peer, uint64_t bytes) {
  {
    MutexLock lock(&mu_);
    bytes_ -= bytes;
    const auto found = bytes_of_.find(peer);
    if (found != bytes_of_.end() && (found->second -= bytes) == 0) bytes_of_.erase(found);
  }
  Go();
}

// Lets in whoever there is room for.
void PartLine::Go() {
  absl::Status closed;
  {
    MutexLock lock(&mu_);
    closed = closed_;
  }
  bool full = false;  // Who is behind the first one does not get its room.
  std::vector<AskOfPeer> in = parked_->TakeIf([&](const AskOfPeer& ask) {
    const Room room = full ? Room::kNot : closed.ok() ? Take(ask) : Room::kYes;
    full = room == Room::kNot;
    return room == Room::kYes;
  });
  for (AskOfPeer& ask : in) {
    if (!closed.ok()) {
      EndAsk(std::move(ask), closed);
      continue;
    }
    executor_->RunWithoutWaiting([self = shared_from_this(), ask = std::move(ask)]() mutable {
      self->Answer(std::move(ask));
    });
  }
}

void PartLine::Answer(AskOfPeer ask) {
  const bool cancelled = ask.args.cancellation != nullptr && ask.args.cancellation->cancelled();
  absl::StatusOr<Tensor> made =
      cancelled ? absl::StatusOr<Tensor>(absl::CancelledError("cancelled")) : make_(ask);
  if (!made.ok()) {
    Give(ask.peer, ask.bytes);
    return EndAsk(std::move(ask), std::move(made));
  }
  // The room is given back when the bytes are freed.
  Tensor bytes = *std::move(made);
  void* const data = bytes.mutable_data();
  const DType dtype = bytes.dtype();
  const TensorShape shape = bytes.shape();
  const MemorySpace space = bytes.space();
  auto answer = Tensor::Adopt(data, dtype, shape, space,
                              [weak = weak_from_this(), bytes = std::move(bytes), peer = ask.peer,
                               size = ask.bytes]() mutable {
                                bytes.Reset();
                                if (const auto self = weak.lock()) self->Give(peer, size);
                              });
  EndAsk(std::move(ask), std::move(answer));
}

}  // namespace tryst
