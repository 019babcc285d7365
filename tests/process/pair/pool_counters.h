#ifndef TRYST_TESTS_PROCESS_PAIR_POOL_COUNTERS_H_
#define TRYST_TESTS_PROCESS_PAIR_POOL_COUNTERS_H_

#include <cstdint>
#include <map>
#include <utility>

#include "channel/pool/channel_pool.h"
#include "channel/rdma/rdma_transport.h"
#include "channel/shm/shm_transport.h"

// Counters of a pool's transports, in more detail than ChannelPool::AskCounters(), summed over its
// NICs. Call them on the poller thread, or if there is no thread; Ask() may be called anywhere.
namespace tryst {

template <typename T, typename B, typename C>
C SumOver(const ChannelPool& pool, C (B::*counters)() const) {
  C sum;
  for (const auto& transport : pool.transports()) {
    if (auto* one = dynamic_cast<T*>(transport.get())) sum += (one->*counters)();
  }
  return sum;
}
inline FetchCounters RdmaFetched(const ChannelPool& pool) {
  return SumOver<RdmaTransport>(pool, &RdmaTransport::fetch_counters);
}
inline ServeCounters RdmaServed(const ChannelPool& pool) {
  return SumOver<RdmaTransport>(pool, &RdmaTransport::serve_counters);
}
inline FetchCounters ShmFetched(const ChannelPool& pool) {
  return SumOver<ShmTransport>(pool, &ShmTransport::fetch_counters);
}
inline ServeCounters ShmServed(const ChannelPool& pool) {
  return SumOver<ShmTransport>(pool, &ShmTransport::serve_counters);
}
// The bytes of each landing memory that channels know of as lent, and as waited for.
using LandingBytes = std::map<const LandingPool*, std::pair<uint64_t, uint64_t>>;
inline void AddLandings(const ChannelPool& pool, LandingBytes* known) {
  for (const auto& transport : pool.transports()) {
    const auto* rdma = dynamic_cast<const RdmaTransport*>(transport.get());
    if (rdma == nullptr) continue;
    uint64_t lent = 0;
    uint64_t waiting = 0;
    const LandingPool* landings = rdma->AddLent(&lent, &waiting);
    (*known)[landings].first += lent;
    (*known)[landings].second += waiting;
  }
}
// How many bytes peers may write: now, and at most so far.
inline std::pair<uint64_t, uint64_t> PinnedBytes(const ChannelPool& pool) {
  Counters counters;
  pool.AddCountersNow(&counters);
  const auto& all = counters.all();
  return {static_cast<uint64_t>(all.at("pinned_bytes").value),
          static_cast<uint64_t>(all.at("pinned_bytes_most").value)};
}

// Runs `counters` on the poller's thread.
template <typename C>
C Ask(ChannelPool* pool, C (*counters)(const ChannelPool&)) {
  C answer;
  pool->poller()->RunAndWait([&] { answer = counters(*pool); });
  return answer;
}

}  // namespace tryst

#endif  // TRYST_TESTS_PROCESS_PAIR_POOL_COUNTERS_H_
