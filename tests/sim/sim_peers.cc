#include "tests/sim/sim_peers.h"

#include "channel/ops/fetch_ask.h"
#include "channel/ops/fetch_link.h"
#include "channel/ops/session_transport.h"

namespace tryst {

std::vector<FetchSession*> FetchingOf(const ChannelPools& pools) {
  std::vector<FetchSession*> found;
  for (const auto& pool : pools.all()) {
    for (const auto& transport : pool->transports()) {
      const auto* const sessions = dynamic_cast<const SessionTransport*>(transport.get());
      if (sessions == nullptr) continue;
      found.insert(found.end(), sessions->fetching().begin(), sessions->fetching().end());
    }
  }
  return found;
}

bool SayStrayCancel(const ChannelPools& pools, SimRandom* random) {
  std::vector<std::pair<FetchSession*, const FetchAsk*>> asked;
  for (FetchSession* session : FetchingOf(pools)) {
    if (!session->open()) continue;
    for (const FetchAsk* ask : session->slots().all()) {
      if (ask == nullptr) continue;
      const bool waits = ask->state == FetchState::kAsked || ask->state == FetchState::kCopying ||
                         ask->state == FetchState::kWaitingRoom;
      if (waits) asked.emplace_back(session, ask);
    }
  }
  if (asked.empty()) return false;
  const auto& [session, ask] = asked[random->Below(asked.size())];
  FetchAsk stray;
  stray.slot = ask->slot;
  stray.generation = static_cast<uint16_t>(ask->generation - 1);
  FetchWords* const words = session->link()->words();
  const bool said = words->SendCancel(stray);
  words->FlushSoon();
  return said;
}

// By std::mt19937_64, which is the same everywhere.
uint64_t SeedOfGenerationZero(size_t draw) {
  static constexpr uint64_t kSeeds[] = {48'581, 52'272, 11'021, 42'594};
  return kSeeds[draw - 2];
}

}  // namespace tryst
