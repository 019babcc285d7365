#include "tests/doubles/sim_nic/link_model.h"

namespace tryst {

int64_t WireNs(const LinkModel& link, uint64_t bytes) {
  const auto scaled = static_cast<unsigned __int128>(bytes) * 1'000'000'000;
  return link.message_overhead_ns +
         static_cast<int64_t>(scaled / static_cast<uint64_t>(link.bytes_per_second));
}

int64_t LandedNs(const LinkModel& link, uint64_t bytes, int64_t count) {
  return count * WireNs(link, bytes) + link.latency_ns;
}

int64_t AcknowledgedNs(const LinkModel& link, const LinkModel& reverse, uint64_t bytes,
                       int64_t count) {
  return LandedNs(link, bytes, count) + reverse.latency_ns;
}

int64_t ReadNs(const LinkModel& request, const LinkModel& response, uint64_t bytes) {
  return LandedNs(request, 0, 1) + LandedNs(response, bytes, 1);
}

}  // namespace tryst
