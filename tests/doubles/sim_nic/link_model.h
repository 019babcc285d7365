#ifndef TRYST_TESTS_DOUBLES_SIM_NIC_LINK_MODEL_H_
#define TRYST_TESTS_DOUBLES_SIM_NIC_LINK_MODEL_H_

#include <cstdint>

namespace tryst {

// One direction between two NICs, after LogGP: latency L, overhead o of a message, and gap G of
// each byte. All are paid on one wire, which carries one message at a time.
struct LinkModel {
  int64_t latency_ns = 1000;
  int64_t message_overhead_ns = 50;
  int64_t bytes_per_second = 12'500'000'000;  // 100 Gbit/s.
  int64_t jitter_ns = 0;  // The most that is added to the latency, drawn for each packet.
  uint32_t loss_ppm = 0;  // So many packets in a million; the sender sends them again.
};

// How long the first `bytes` of a message occupy the wire. A chunk's time is the difference of two
// such values, so that the chunks add up to the whole without rounding.
int64_t WireNs(const LinkModel& link, uint64_t bytes);

// The closed forms, for a wire that is idle at first and a link without jitter or loss. From
// posting the first of `count` equal messages until ... ... the last byte of the last one has
// landed:
int64_t LandedNs(const LinkModel& link, uint64_t bytes, int64_t count);
// ... its acknowledgement is back over `reverse`:
int64_t AcknowledgedNs(const LinkModel& link, const LinkModel& reverse, uint64_t bytes,
                       int64_t count);
// ... `bytes` asked for by one READ over `request` are here over `response`:
int64_t ReadNs(const LinkModel& request, const LinkModel& response, uint64_t bytes);

}  // namespace tryst

#endif  // TRYST_TESTS_DOUBLES_SIM_NIC_LINK_MODEL_H_
