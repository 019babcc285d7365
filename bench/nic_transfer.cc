#include "bench/nic_transfer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tryst {
namespace {

// One write in `kSignalEvery` is signaled, because polling for completions costs time.
constexpr int kSignalEvery = 4;
constexpr uint32_t kInlineBytes = 64;

template <typename T>
T Require(absl::StatusOr<T> result) {
  TRYST_CHECK(result.ok()) << result.status();
  return *std::move(result);
}

}  // namespace

NicTransfer::End NicTransfer::Open(const OpenNic& open, size_t bytes) {
  End end;
  end.nic = open();
  end.memory.resize(bytes, 1);
  end.region =
      Require(end.nic->RegisterRegion(end.memory.data(), bytes, kLocalWrite | kRemoteWrite));
  QueuePairOptions options;
  options.send_depth = 4 * kWindow;
  options.receive_depth = 4 * kWindow;
  options.max_inline_bytes = std::min(kInlineBytes, end.nic->limits().max_inline_bytes);
  options.ack_timeout = 20;  // Long, because a machine that runs benchmarks is often busy.
  end.completions =
      Require(end.nic->CreateCompletionQueue(options.send_depth + options.receive_depth));
  options.completions = end.completions.get();
  end.queue_pair = Require(end.nic->CreateQueuePair(options));
  for (int i = 0; i < kWindow; ++i) PostReceive(&end);
  return end;
}

NicTransfer::NicTransfer(const OpenNic& open, size_t bytes)
    : ends_{Open(open, bytes), Open(open, bytes)} {
  const std::string first = ends_[0].queue_pair->LocalAddress();
  const std::string second = ends_[1].queue_pair->LocalAddress();
  TRYST_CHECK(ends_[0].queue_pair->Connect(second).ok());
  TRYST_CHECK(ends_[1].queue_pair->Connect(first).ok());
}

NicTransfer::~NicTransfer() {
  for (End& end : ends_) {
    end.queue_pair.reset();
    end.completions.reset();
    end.region.reset();
  }
}

void NicTransfer::PostReceive(End* end) {
  const ReceiveWork work;
  TRYST_CHECK(end->queue_pair->PostReceive(absl::MakeConstSpan(&work, 1)).ok());
}

void NicTransfer::PostWrite(End* from, const End& to, SendOp op, size_t offset, size_t bytes,
                            bool signaled) {
  const Entry piece = {from->region->address() + offset, bytes, from->region->local_key()};
  SendWork work;
  work.op = op;
  work.signaled = signaled;
  work.inline_data = bytes <= std::min(kInlineBytes, from->nic->limits().max_inline_bytes);
  work.entries = absl::MakeConstSpan(&piece, 1);
  work.remote_address = to.region->address() + offset;
  work.remote_key = to.region->remote_key();
  const absl::Status posted = from->queue_pair->PostSend(absl::MakeConstSpan(&work, 1));
  TRYST_CHECK(posted.ok()) << posted;
}

size_t NicTransfer::Poll(End* end, Completion* out, size_t count) {
  const size_t polled = Require(end->completions->Poll(absl::MakeSpan(out, count)));
  for (size_t i = 0; i < polled; ++i) {
    TRYST_CHECK(out[i].status == CompletionStatus::kOk) << CompletionStatusName(out[i].status);
  }
  return polled;
}

void NicTransfer::PingPong(bool first, size_t bytes, int rounds) {
  End* const self = &ends_[first ? 0 : 1];
  const End& other = ends_[first ? 1 : 0];
  int sent = 0;
  int received = 0;
  const auto hit = [&] {
    ++sent;
    // The last write is signaled, so that all have completed at the end.
    PostWrite(self, other, SendOp::kWriteWithImmediate, 0, bytes,
              sent % kSignalEvery == 0 || sent == rounds);
  };
  if (first) hit();
  bool last_done = false;
  while (received < rounds || !last_done) {
    Completion batch[4];
    const size_t polled = Poll(self, batch, 4);
    for (size_t i = 0; i < polled; ++i) {
      if (batch[i].op != CompletionOp::kReceiveWriteImmediate) {
        last_done = sent == rounds && self->queue_pair->send_room() == 4 * kWindow;
        continue;
      }
      ++received;
      PostReceive(self);
      if (sent < rounds) hit();
    }
  }
  // A NIC without hardware acknowledges only while it is polled.
  ++self->games;
  finished_.fetch_add(1);
  while (finished_.load() < 2 * self->games) {
    Completion none;
    TRYST_CHECK(Poll(self, &none, 1) == 0);
  }
}

void NicTransfer::WriteAll(size_t bytes, int places, int count) {
  End* const self = &ends_[0];
  int sent = 0;
  while (sent < count || self->queue_pair->send_room() < 4 * kWindow) {
    while (sent < count && 4 * kWindow - self->queue_pair->send_room() < kWindow) {
      const size_t offset = static_cast<size_t>(sent % places) * bytes;
      ++sent;
      PostWrite(self, ends_[1], SendOp::kWrite, offset, bytes,
                sent % kSignalEvery == 0 || sent == count);
    }
    Completion batch[4];
    Poll(self, batch, 4);
  }
  written_.store(true);
}

void NicTransfer::PollUntilWritten() {
  Completion batch[4];
  while (!written_.load(std::memory_order_relaxed)) Poll(&ends_[1], batch, 4);
  written_.store(false);
}

}  // namespace tryst
