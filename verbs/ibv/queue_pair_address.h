#ifndef TRYST_VERBS_IBV_QUEUE_PAIR_ADDRESS_H_
#define TRYST_VERBS_IBV_QUEUE_PAIR_ADDRESS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tryst {

// What a peer must know of a queue pair to connect to it; encoded as QueuePair::LocalAddress()
// (fixed width, little endian).
struct QueuePairAddress {
  uint32_t number = 0;        // 24 bits.
  uint32_t first_packet = 0;  // Packet sequence number, 24 bits.
  uint16_t lid = 0;           // 0 on Ethernet.
  bool ethernet = false;
  uint32_t mtu_bytes = 0;
  uint8_t reads_served = 0;  // How many READs it serves at once.
  union ibv_gid gid = {};
  // Enhanced connection establishment: what the NIC offers beyond the standard; all zero: nothing.
  uint32_t ece_vendor = 0;
  uint32_t ece_options = 0;
};

std::string EncodeQueuePairAddress(const QueuePairAddress& address);

// kInvalidArgument: EncodeQueuePairAddress() did not make these bytes.
absl::StatusOr<QueuePairAddress> DecodeQueuePairAddress(absl::string_view bytes);

// 256, 512, 1024, 2048 or 4096 as the constant of verbs; kInvalidArgument: another size.
absl::StatusOr<ibv_mtu> MtuFromBytes(uint32_t bytes);
uint32_t MtuBytes(ibv_mtu mtu);  // 0: verbs has no such constant.

}  // namespace tryst

#endif  // TRYST_VERBS_IBV_QUEUE_PAIR_ADDRESS_H_
