#include "tests/doubles/soft/soft_world.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr uint32_t kQueueDepth = 4096;

}  // namespace

std::unique_ptr<SoftNic> MustOpenSoftNic(const SoftNicOptions& options) {
  auto opened = OpenSoftNic(options);
  TRYST_CHECK(opened.ok()) << opened.status();
  return *std::move(opened);
}

SoftSide::SoftSide(SoftNic* nic, uint64_t bytes) : nic(nic), memory(bytes + 2 * kRedBytes) {
  std::fill_n(memory.begin(), kRedBytes, kRed);
  std::fill_n(memory.end() - kRedBytes, kRedBytes, kRed);
  auto registered = nic->RegisterRegion(data(), bytes, kRemoteWrite | kRemoteRead);
  TRYST_CHECK(registered.ok()) << registered.status();
  region = *std::move(registered);
  auto created = nic->CreateCompletionQueue(kQueueDepth);
  TRYST_CHECK(created.ok()) << created.status();
  completions = *std::move(created);
}

SoftSide::~SoftSide() {
  queue_pair.reset();
  completions.reset();
  region.reset();
}

QueuePairOptions SoftSide::UsualOptions() {
  QueuePairOptions options;
  options.send_depth = 32;
  options.receive_depth = 32;
  options.ack_timeout = 19;
  return options;
}

void SoftSide::OpenQueuePair(QueuePairOptions options) {
  queue_pair.reset();
  options.completions = completions.get();
  auto created = nic->CreateQueuePair(options);
  TRYST_CHECK(created.ok()) << created.status();
  queue_pair = *std::move(created);
}

void SoftSide::PostReceives(int count) {
  for (int i = 0; i < count; ++i) {
    const Entry into = {region->address(), region->bytes(), region->local_key()};
    ReceiveWork work;
    work.id = 100;
    work.entries = absl::MakeConstSpan(&into, 1);
    TRYST_CHECK(queue_pair->PostReceive(absl::MakeConstSpan(&work, 1)).ok());
  }
}

absl::Status SoftSide::PostWrite(uint64_t bytes, SendOp op) {
  const Entry from = {region->address(), bytes, region->local_key()};
  SendWork work;
  work.op = op;
  work.entries = absl::MakeConstSpan(&from, 1);
  if (remote != nullptr) {
    work.remote_address = remote->address();
    work.remote_key = remote->remote_key();
  }
  return queue_pair->PostSend(absl::MakeConstSpan(&work, 1));
}

void SoftSide::Poll() {
  Completion batch[16];
  const absl::StatusOr<size_t> polled = completions->Poll(absl::MakeSpan(batch));
  TRYST_CHECK(polled.ok()) << polled.status();
  done.insert(done.end(), batch, batch + *polled);
}

bool SoftSide::RedZonesIntact() const {
  const auto red = [](uint8_t byte) { return byte == kRed; };
  return std::all_of(memory.begin(), memory.begin() + kRedBytes, red) &&
         std::all_of(memory.end() - kRedBytes, memory.end(), red);
}

void ConnectSides(SoftSide* a, SoftSide* b) {
  const std::string to_a = a->queue_pair->LocalAddress();
  TRYST_CHECK(a->queue_pair->Connect(b->queue_pair->LocalAddress()).ok());
  TRYST_CHECK(b->queue_pair->Connect(to_a).ok());
  a->remote = b->region.get();
  b->remote = a->region.get();
}

bool PollUntil(const std::vector<SoftSide*>& sides, const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > end) return false;
    for (SoftSide* side : sides) side->Poll();
    sched_yield();
  }
  return true;
}

}  // namespace tryst
