#ifndef TRYST_CHANNEL_RDMA_LINK_MEMORY_H_
#define TRYST_CHANNEL_RDMA_LINK_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "channel/rdma/link_options.h"
#include "verbs/nic.h"

namespace tryst {

// The registered memory of one link, mapped as
// [our ack page, written by the peer][our ring, written by the peer]
// [the ack page we are sending][the messages we are sending][words]
// A quiet link uses the first page of each half.
class LinkMemory {
 public:
  LinkMemory() = default;
  ~LinkMemory();
  LinkMemory(const LinkMemory&) = delete;
  LinkMemory& operator=(const LinkMemory&) = delete;

  absl::Status Open(Nic* nic, const LinkOptions& options);

  // What the peer writes, and the keys that allow it.
  const uint8_t* ring_in() const { return ring_in_; }
  const uint8_t* ack_in() const { return ack_in_; }
  uint64_t RemoteAddress(const uint8_t* at) const {
    return in_region_->address() + static_cast<uint64_t>(at - memory_);
  }
  uint32_t remote_key() const { return in_region_->remote_key(); }
  // What we send from.
  uint8_t* ring_out() const { return ring_out_; }
  uint8_t* ack_out() const { return ack_out_; }
  Entry Out(const uint8_t* at, uint64_t bytes) const {
    return {out_region_->address() + static_cast<uint64_t>(at - ack_out_), bytes,
            out_region_->local_key()};
  }
  // On a NIC without immediates: a word of 4 bytes for each receive and each send of every lane.
  uint64_t WordIn(size_t lane, uint32_t word) const;
  uint64_t WordOut(size_t lane, uint32_t word) const;
  Entry Word(uint64_t at) const { return {at, kWordBytes, words_region_->local_key()}; }

  static constexpr uint32_t kWordBytes = 4;

 private:
  size_t WordsBytes() const;

  LinkOptions options_;
  uint8_t* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  uint8_t* ring_in_ = nullptr;
  uint8_t* ack_in_ = nullptr;
  uint8_t* ring_out_ = nullptr;
  uint8_t* ack_out_ = nullptr;
  uint8_t* words_ = nullptr;              // The words of receives, then those of sends.
  std::unique_ptr<Region> words_region_;  // No peer may access it.
  std::unique_ptr<Region> in_region_;     // Ring and ack page: the peer may write here.
  std::unique_ptr<Region> out_region_;    // No peer may access it.
};

}  // namespace tryst

#endif  // TRYST_CHANNEL_RDMA_LINK_MEMORY_H_
