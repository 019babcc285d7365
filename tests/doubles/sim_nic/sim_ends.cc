#include "tests/doubles/sim_nic/sim_ends.h"

#include "base/log.h"

namespace tryst {
namespace {

template <typename T>
T Good(absl::StatusOr<T> result) {
  TRYST_CHECK(result.ok()) << result.status();
  return *std::move(result);
}

}  // namespace

SimEnd::SimEnd(SimWorld* world, uint32_t place, uint64_t memory_bytes, const SimNicOptions& options)
    : world(world),
      memory(memory_bytes),
      nic(world->OpenNic(place, options)),
      region(Good(nic->RegisterRegion(memory.data(), memory.size(), kRemoteWrite | kRemoteRead))),
      completions(Good(nic->CreateCompletionQueue(65536))) {}

QueuePair* SimEnd::AddQueuePair(QueuePairOptions options) {
  options.completions = completions.get();
  pairs.push_back(Good(nic->CreateQueuePair(options)));
  return pairs.back().get();
}

absl::Status SimEnd::Post(QueuePair* pair, SendWork work, uint64_t offset, uint64_t bytes) {
  const Entry entry{region->address() + offset, bytes, region->local_key()};
  work.entries = absl::MakeConstSpan(&entry, 1);
  return pair->PostSend(absl::MakeConstSpan(&work, 1));
}

absl::Status SimEnd::PostReceive(QueuePair* pair, uint64_t id) {
  ReceiveWork work;
  work.id = id;
  return pair->PostReceive(absl::MakeConstSpan(&work, 1));
}

std::vector<Completion> SimEnd::Poll() {
  std::vector<Completion> all;
  Completion some[16];
  while (const size_t count = Good(completions->Poll(absl::MakeSpan(some)))) {
    all.insert(all.end(), some, some + count);
  }
  return all;
}

SendWork SimEnd::WriteTo(const SimEnd& peer, uint64_t id, uint64_t offset) const {
  SendWork work;
  work.id = id;
  work.op = SendOp::kWrite;
  work.remote_address = peer.region->address() + offset;
  work.remote_key = peer.region->remote_key();
  return work;
}

void Join(QueuePair* one, QueuePair* other) {
  for (const absl::Status& connected :
       {one->Connect(other->LocalAddress()), other->Connect(one->LocalAddress())}) {
    TRYST_CHECK(connected.ok()) << connected;
  }
}

}  // namespace tryst
