#include "channel/rdma/link_memory.h"

#include <sys/mman.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/rdma/wire.h"

namespace tryst {
namespace {

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

LinkMemory::~LinkMemory() {
  in_region_.reset();
  out_region_.reset();
  words_region_.reset();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

absl::Status LinkMemory::Open(Nic* nic, const LinkOptions& options) {
  options_ = options;
  const bool immediates = nic->limits().write_with_immediate;
  const size_t ring_bytes = size_t{options.ring_slots} * options.message_bytes;
  const size_t ack_bytes = RoundUp(wire::AckPageBytes(options.slots), 64);
  // The ring that we send from has as many slots as ours, because the peer's number is not known
  // yet. If the peer has more, the others stay unused.
  const size_t in_bytes = RoundUp(ring_bytes + ack_bytes, 4096);
  memory_bytes_ = 2 * in_bytes + (immediates ? 0 : WordsBytes());
  // Fresh pages: an idle link's memory is not resident until it is used.
  void* memory =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the process has no memory left for a ring of ", options.ring_slots, " messages"));
  }
  memory_ = static_cast<uint8_t*>(memory);
  ack_in_ = memory_;
  ring_in_ = ack_in_ + ack_bytes;
  ack_out_ = memory_ + in_bytes;
  ring_out_ = ack_out_ + ack_bytes;

  auto in_region = nic->RegisterRegion(memory_, in_bytes, kLocalWrite | kRemoteWrite);
  if (!in_region.ok()) return in_region.status();
  in_region_ = *std::move(in_region);
  auto out_region = nic->RegisterRegion(ack_out_, in_bytes, kLocalOnly);
  if (!out_region.ok()) return out_region.status();
  out_region_ = *std::move(out_region);
  if (!immediates) {
    words_ = memory_ + 2 * in_bytes;
    auto words_region = nic->RegisterRegion(words_, WordsBytes(), kLocalWrite);
    if (!words_region.ok()) return words_region.status();
    words_region_ = *std::move(words_region);
  }
  return absl::OkStatus();
}

size_t LinkMemory::WordsBytes() const {
  return options_.queue_pairs * size_t{ReceiveDepth(options_, 0) + options_.send_depth} *
         kWordBytes;
}

uint64_t LinkMemory::WordIn(size_t lane, uint32_t word) const {
  return reinterpret_cast<uint64_t>(words_) +
         (lane * (ReceiveDepth(options_, 0) + options_.send_depth) + word) * kWordBytes;
}

uint64_t LinkMemory::WordOut(size_t lane, uint32_t word) const {
  return WordIn(lane, ReceiveDepth(options_, 0) + word);
}

}  // namespace tryst
