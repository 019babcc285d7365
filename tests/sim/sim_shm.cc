#include "tests/sim/sim_shm.h"

#include <poll.h>

#include <algorithm>

#include "absl/status/status.h"
#include "channel/ops/fetch_session.h"
#include "channel/ops/serve_session.h"
#include "channel/shm/shm_hub.h"

namespace tryst {

ArenaOptions DrawArena(SimRandom* random, uint64_t seed) {
  static constexpr uint64_t kCaps[] = {256 << 10, 1 << 20, 4 << 20, 64 << 20};
  ArenaOptions arena;
  arena.cap_bytes = kCaps[random->Below(4)];
  arena.segment_bytes = std::min<uint64_t>(arena.cap_bytes, 1 << 20);
  arena.first_segment_bytes = 64 << 10;
  arena.seed = seed;
  return arena;
}

ShmOptions DrawShm(SimRandom* random) {
  static constexpr uint32_t kSlots[] = {1, 2, 3, 8, 128};
  static constexpr uint32_t kReferences[] = {4, 16, 4096};
  static constexpr uint64_t kParts[] = {64 << 10, 256 << 10, 2 << 20};
  const auto chance = [random](uint64_t percent) { return random->Below(100) < percent; };
  ShmOptions shm;
  shm.sizes.cells = shm_wire::kMinCells;
  shm.sizes.slots = kSlots[random->Below(5)];
  shm.sizes.references = kReferences[random->Below(3)];
  shm.digests = chance(30);
  shm.apart = chance(15);
  shm.allow_pull = chance(75);
  shm.stage_bytes = chance(30) ? 64 << 10 : 512 << 20;
  // Those between the two are read out of the producer's memory.
  shm.pull_bytes = 512;
  shm.parts_bytes = chance(60) ? 512 << 10 : 64;
  shm.parts_room_bytes = kParts[random->Below(3)];
  shm.retain_ms = 100'000;
  return shm;
}

std::vector<ShmTransport*> ShmOf(const ChannelPools& pools) {
  std::vector<ShmTransport*> found;
  for (const auto& pool : pools.all()) {
    for (const auto& transport : pool->transports()) {
      auto* const shm = dynamic_cast<ShmTransport*>(transport.get());
      if (shm != nullptr) found.push_back(shm);
    }
  }
  return found;
}

bool SocketsWait(const ChannelPools& pools) {
  const std::vector<ShmTransport*> all = ShmOf(pools);
  return std::any_of(all.begin(), all.end(), [](ShmTransport* shm) {
    pollfd waits = {shm->hub()->event_fd(), POLLIN, 0};
    return poll(&waits, 1, 0) == 1;
  });
}

bool BreakSomeShmLink(const ChannelPools& pools, SimRandom* random) {
  std::vector<FetchSession*> fetching;
  std::vector<const ServeSession*> serving;
  for (const ShmTransport* shm : ShmOf(pools)) {
    for (FetchSession* session : shm->fetching()) {
      if (session->open()) fetching.push_back(session);
    }
    for (const ServeSession* session : shm->serving()) {
      if (session->link()->Exists()) serving.push_back(session);
    }
  }
  if (fetching.size() + serving.size() == 0) return false;
  const absl::Status why = random->Below(2) == 0
                               ? absl::DataLossError(kBreaksARule)
                               : absl::UnavailableError("the simulation ends a link");
  const uint64_t one = random->Below(fetching.size() + serving.size());
  if (one < fetching.size()) {
    fetching[one]->link()->Break(why);
  } else {
    serving[one - fetching.size()]->link()->Break(why);
  }
  return true;
}

void EndShmSockets(const ChannelPools& pools) {
  for (ShmTransport* shm : ShmOf(pools)) shm->hub()->EndSockets();
}

}  // namespace tryst
