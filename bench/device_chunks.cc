#include "bench/device_chunks.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tryst {
namespace {

constexpr uint64_t kChunks = 8;  // In one range.

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void MustWork(const absl::Status& status) { TRYST_CHECK(status.ok()) << status; }

// The bytes of a round. Both sides compute the same.
void FillWords(uint64_t seed, uint64_t bytes, void* out) {
  std::mt19937_64 random(seed);
  auto* words = static_cast<uint64_t*>(out);
  for (uint64_t i = 0; i < (bytes + 7) / 8; ++i) words[i] = random();
}

}  // namespace

Tensor DeviceChunks::TensorAt(const ExpandableRange& range, const Place& place) const {
  auto tensor =
      Tensor::Adopt(reinterpret_cast<void*>(range.At(0) + place.offset), DType::kUint8,
                    {static_cast<int64_t>(place.bytes)},
                    MemorySpace{MemorySpace::Kind::kDevice, parts_.gpu->ordinal()}, nullptr);
  MustWork(tensor.status());
  return *tensor;
}

void DeviceChunks::Send(const std::string& edge, int number, const Tensor& tensor) {
  MustWork(parts_.end->Send(DeviceEnd::Key(1, edge, number), tensor, parts_.stream));
}

int64_t DeviceChunks::Fetch(const std::string& edge, int number, const Tensor& into) {
  std::atomic<bool> ended{false};
  absl::Status status;
  RecvArgs args;
  args.destination = into;
  args.device_context = parts_.end->Context(parts_.stream);
  const int64_t begin = NowNs();
  parts_.end->Fetch(DeviceEnd::Key(1, edge, number), args, [&](Received&& received) {
    status = std::move(received.status);
    ended.store(true, std::memory_order_release);
  });
  while (!ended.load(std::memory_order_acquire)) {
  }
  MustWork(status);
  return NowNs() - begin;
}

void DeviceChunks::Copy(cuda::Address to, cuda::Address from, uint64_t bytes) {
  MustWork(parts_.gpu->Use());
  TRYST_CHECK(parts_.gpu->calls().cuMemcpyAsync(to, from, bytes, parts_.stream) == cuda::kSuccess);
}

// Waits until the memory may be given back.
void DeviceChunks::WaitUntilTaken() {
  while (parts_.end->TransfersKept() > 0) usleep(100);
}

void DeviceChunks::Rounds() {
  const int rounds = parts_.quick ? 40 : 400;
  ExpandableRange range(parts_.gpu, parts_.quick ? 1 : 2 << 20, kChunks);
  const uint64_t chunk = range.chunk_bytes();
  auto host = PinnedMemory::Allocate(parts_.gpu, chunk * kChunks + 8);
  MustWork(host.status());
  std::mt19937_64 random(7);  // Both sides draw the same numbers.
  uint64_t mapped = kChunks - 2;
  range.Map(0, mapped);
  parts_.meet();
  for (int round = 0; round < rounds; ++round) {
    // The producer's range shrinks and grows at its end, and other memory replaces a chunk in its
    // middle. The consumer's range does not change.
    const uint64_t now = 4 + random() % (kChunks - 3);
    const uint64_t anew = random() % 8;  // Every second time one of the first four.
    const uint64_t offset = random() % (chunk / 2) | 1;
    const Place place{offset, 2 * chunk + random() % (now * chunk - 2 * chunk - offset) + 1};
    if (parts_.rank == 1) {
      while (mapped > now) range.Unmap(--mapped);
      while (mapped < now) range.Map(mapped++);
      if (anew < 4) range.Unmap(anew);
      if (anew < 4) range.Map(anew);
    }
    if (parts_.rank == 1) {
      FillWords(round, place.bytes, host->data());
      Copy(range.At(0) + place.offset, AddressOf(host->data()), place.bytes);
      MustWork(parts_.gpu->WaitFor(parts_.stream));
      Send("chunks", round, TensorAt(range, place));
      parts_.meet();
      WaitUntilTaken();
      continue;
    }
    while (mapped < kChunks) range.Map(mapped++);
    const uint64_t into_at = round % 2 == 0 ? 0 : offset + 3;
    const Place into{std::min(into_at, kChunks * chunk - place.bytes), place.bytes};
    Fetch("chunks", round, TensorAt(range, into));
    Copy(AddressOf(host->data()), range.At(0) + into.offset, into.bytes);
    MustWork(parts_.gpu->WaitFor(parts_.stream));
    std::vector<uint64_t> expected(place.bytes / 8 + 1);
    FillWords(round, place.bytes, expected.data());
    TRYST_CHECK(memcmp(expected.data(), host->data(), place.bytes) == 0)
        << "round " << round << ": other bytes came";
    parts_.meet();
  }
  parts_.meet();
  if (parts_.rank == 0) parts_.print("chunks_rounds", 3 * chunk, rounds, "count");
}

void DeviceChunks::First(uint64_t chunk_bytes) {
  ExpandableRange range(parts_.gpu, chunk_bytes, kChunks);
  range.Map(0, kChunks);
  const Place whole{1, range.chunk_bytes() * kChunks - 2};
  const std::string edge = absl::StrCat("first", chunk_bytes);
  constexpr int kPulls = 12;
  parts_.meet();
  if (parts_.rank == 1) {
    for (int i = 0; i < kPulls; ++i) Send(edge, i, TensorAt(range, whole));
    parts_.meet();
    parts_.meet();
    WaitUntilTaken();
    return;
  }
  parts_.meet();
  const int64_t first = Fetch(edge, 0, TensorAt(range, whole));
  std::vector<int64_t> later;
  for (int i = 1; i < kPulls; ++i) later.push_back(Fetch(edge, i, TensorAt(range, whole)));
  std::sort(later.begin(), later.end());
  const int64_t next = later[later.size() / 2];
  parts_.print("chunks_first_pull", whole.bytes, static_cast<double>(first) / 1000, "us");
  parts_.print("chunks_next_pull", whole.bytes, static_cast<double>(next) / 1000, "us");
  parts_.print("chunks_mapping_of_one", range.chunk_bytes(),
               static_cast<double>(first - next) / 1000 / kChunks, "us");
  parts_.meet();
}

void DeviceChunks::Bandwidth(uint64_t chunk_bytes) {
  const uint64_t bytes = parts_.quick ? 4 << 20 : 256 << 20;
  const uint64_t count = bytes / chunk_bytes + 2;
  ExpandableRange range(parts_.gpu, chunk_bytes, count);
  range.Map(0, bytes / range.chunk_bytes() + 2);
  const Place place{4096 + 16, bytes};
  const int pulls = parts_.quick ? 4 : 16;
  const std::string edge = absl::StrCat("bulk_in_chunks", chunk_bytes);
  constexpr int kRounds = 5;
  if (parts_.rank == 1) {
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < pulls; ++i) Send(edge, round * pulls + i, TensorAt(range, place));
      parts_.meet();
      parts_.meet();
    }
    WaitUntilTaken();
    return;
  }
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    parts_.meet();
    std::atomic<int> ended{0};
    const int64_t begin = NowNs();
    for (int i = 0; i < pulls; ++i) {
      RecvArgs args;  // All land in one place, because only the transfer is measured.
      args.destination = TensorAt(range, place);
      args.device_context = parts_.end->Context(parts_.stream);
      parts_.end->Fetch(DeviceEnd::Key(1, edge, round * pulls + i), args, [&](Received&& received) {
        MustWork(received.status);
        ended.fetch_add(1, std::memory_order_release);
      });
      while (i + 1 - ended.load(std::memory_order_acquire) >= 4) {
      }
    }
    while (ended.load(std::memory_order_acquire) < pulls) {
    }
    rates.push_back(static_cast<double>(bytes) * pulls / static_cast<double>(NowNs() - begin));
    parts_.meet();
  }
  std::sort(rates.begin(), rates.end());
  parts_.print(absl::StrCat("chunks_bandwidth_of_", range.chunk_bytes()), bytes,
               rates[rates.size() / 2], "GB/s");
}

}  // namespace tryst
