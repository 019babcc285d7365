#include "channel/pool/channel_pools.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/clock.h"
#include "base/log.h"

namespace tryst {

ChannelPools::ChannelPools(std::vector<std::unique_ptr<ChannelPool>> pools)
    : pools_(std::move(pools)) {
  TRYST_CHECK(!pools_.empty());
}

ChannelPools::~ChannelPools() = default;

// A task's number is added as it is, so that eight tasks of one job go to eight pollers. The part
// before the number is hashed, so that task 0 of each job is not always on the first poller.
size_t ChannelPools::PlaceOf(absl::string_view worker, size_t pollers) {
  size_t digits = 0;
  while (digits < worker.size() && digits < 9 &&
         absl::ascii_isdigit(worker[worker.size() - 1 - digits])) {
    ++digits;
  }
  uint64_t number = 0;
  for (const char c : worker.substr(worker.size() - digits)) {
    number = 10 * number + static_cast<uint64_t>(c - '0');
  }
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a: the same in every process.
  for (const char c : worker.substr(0, worker.size() - digits)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return (hash % pollers + number) % pollers;
}

absl::Status ChannelPools::Open() {
  for (const auto& pool : pools_) {
    const absl::Status opened = pool->Open();
    if (!opened.ok()) return opened;
  }
  return absl::OkStatus();
}

void ChannelPools::Close(const absl::Status& why) {
  for (const auto& pool : pools_) pool->Close(why);
}

size_t ChannelPools::Coming() {
  size_t count = 0;
  for (const auto& pool : pools_) count += pool->Coming().value_or(1);
  return count;
}

absl::Status ChannelPools::Stop(const absl::Status& why, absl::Duration timeout) {
  const Clock& clock = pools_[0]->poller()->clock();
  const int64_t until_ns = clock.NowNs() + absl::ToInt64Nanoseconds(timeout);
  // An answer that was posted before still goes: a turn sends what its tasks said, and only then
  // begins the one that closes. A poller that stands still is not waited for.
  for (const auto& pool : pools_) (void)pool->AwaitTurn();
  Close(why);  // First all at once, so that none waits for the others to drain.
  absl::Status first;
  for (const auto& pool : pools_) {
    const absl::Duration left = absl::Nanoseconds(std::max<int64_t>(until_ns - clock.NowNs(), 0));
    first.Update(pool->Stop(why, left));
  }
  return first;
}

bool ChannelPools::Drained() {
  return std::all_of(pools_.begin(), pools_.end(),
                     [](const auto& pool) { return pool->Drained(); });
}

// ---- Fetching ----

void ChannelPools::Fetch(int64_t step_id, const TensorKey& key, const RecvArgs& args,
                         FetchedFn&& done) {
  pools_[PlaceOf(key)]->Fetch(step_id, key, args, std::move(done));
}

void ChannelPools::FetchMany(int64_t step_id, absl::Span<const TensorKey> keys,
                             const RecvArgs& args, ManyFetchedFn done) {
  size_t place = 0;
  if (pools_.size() > 1 && !keys.empty()) {
    place = PlaceOf(keys[0]);
    const auto there = [&](const TensorKey& key) {
      return key.IsFrom(keys[0].src().worker) || PlaceOf(key) == place;
    };
    if (!std::all_of(keys.begin() + 1, keys.end(), there)) {
      return FetchApart(step_id, keys, args, std::move(done));
    }
  }
  pools_[place]->FetchMany(step_id, keys, args, std::move(done));
}

// Fetches each poller's share of `keys` as one; the last share to end calls back.
void ChannelPools::FetchApart(int64_t step_id, absl::Span<const TensorKey> keys,
                              const RecvArgs& args, ManyFetchedFn done) {
  struct Part {
    std::vector<TensorKey> keys;
    std::vector<size_t> at;  // The places of its keys in the call's `keys`.
    std::vector<Tensor> destinations;
  };
  struct Many {
    std::atomic<size_t> left{0};
    std::vector<Received> results;
    ManyFetchedFn done;
  };
  std::vector<Part> parts(pools_.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    Part& part = parts[PlaceOf(keys[i])];
    part.keys.push_back(keys[i]);
    part.at.push_back(i);
    if (!args.destinations.empty()) part.destinations.push_back(args.destinations[i]);
  }
  auto many = std::make_shared<Many>();
  many->results.resize(keys.size());
  many->done = std::move(done);
  many->left = static_cast<size_t>(std::count_if(
      parts.begin(), parts.end(), [](const Part& part) { return !part.keys.empty(); }));
  for (size_t place = 0; place < parts.size(); ++place) {
    if (parts[place].keys.empty()) continue;
    RecvArgs part_args = args;
    part_args.destinations = parts[place].destinations;
    pools_[place]->FetchMany(
        step_id, parts[place].keys, part_args,
        [many, at = std::move(parts[place].at)](absl::Status, absl::Span<Received> received) {
          for (size_t i = 0; i < at.size(); ++i) many->results[at[i]] = std::move(received[i]);
          if (many->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
          absl::Status first;
          for (const Received& result : many->results) first.Update(result.status);
          std::move(many->done)(std::move(first), absl::MakeSpan(many->results));
        });
  }
}

std::shared_ptr<Turns> ChannelPools::TurnsFor(const TensorKey& key) {
  return pools_[PlaceOf(key)]->poller()->turns();
}

void ChannelPools::AbortStep(int64_t step_id, const absl::Status& status) {
  for (const auto& pool : pools_) pool->AbortStep(step_id, status);
}

void ChannelPools::OnHello(const Hello& hello, HelloDone done) {
  pools_[PlaceOf(hello.worker, pools_.size())]->OnHello(hello, std::move(done));
}

void ChannelPools::RenewLinks(int64_t within_ms) {
  for (const auto& pool : pools_) pool->RenewLinks(within_ms);
}

// ---- State ----

absl::Status ChannelPools::ListOps(LiveOps* ops) {
  absl::Status first;
  for (const auto& pool : pools_) first.Update(pool->ListOps(ops));
  return first;
}

absl::Status ChannelPools::ViewPaths(const std::string& peer, std::vector<PathView>* views) {
  absl::Status first;
  for (size_t place = 0; place < pools_.size(); ++place) {
    auto seen = pools_[place]->ViewPaths(peer);
    if (!seen.ok()) {
      first.Update(seen.status());
      continue;
    }
    for (PathView& view : *seen) {
      view.place = place;
      views->push_back(std::move(view));
    }
  }
  return first;
}

absl::Status ChannelPools::AskCounters(Counters* counters) {
  absl::Status first;
  for (const auto& pool : pools_) first.Update(pool->AskCounters(counters));
  counters->Gauge("pollers", pools_.size());
  return first;
}

std::string ChannelPools::Explain(const std::string& peer) {
  std::string out;
  for (const auto& pool : pools_) out += pool->Explain(peer);
  return out;
}

std::string ChannelPools::ExplainNow(const std::string& peer) const {
  std::string out;
  for (const auto& pool : pools_) out += pool->ExplainNow(peer);
  return out;
}

}  // namespace tryst
