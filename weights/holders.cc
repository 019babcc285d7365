#include "weights/holders.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/little_endian.h"

namespace tryst {
namespace {

constexpr size_t kHead = sizeof(uint64_t) + sizeof(uint16_t);  // Before each name.

const uint8_t* Bytes(absl::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

void KnownHolders::Add(const WeightVersion& name, const Holder& holder, bool of_itself) {
  if (name.number == 0 || holder.incarnation == 0) return;
  Version& version = versions_[name.number];
  if (version.birth != name.birth) version = {name.birth, {}};
  if (versions_.size() > kMaxVersions) versions_.erase(versions_.begin());
  const auto found = versions_.find(name.number);
  if (found == versions_.end()) return;
  auto& workers = found->second.workers;
  const auto known = workers.find(holder.worker);
  if (known != workers.end() && !of_itself) return;
  if (known == workers.end() && workers.size() == kMaxHolders) {
    workers.erase(std::min_element(
        workers.begin(), workers.end(),
        [](const auto& a, const auto& b) { return a.second.heard < b.second.heard; }));
  }
  workers[holder.worker] = {holder.incarnation, ++heard_};
}

void KnownHolders::Remove(const WeightVersion& name, const Holder& holder) {
  const auto version = versions_.find(name.number);
  if (version == versions_.end() || version->second.birth != name.birth) return;
  const auto known = version->second.workers.find(holder.worker);
  if (known != version->second.workers.end() && known->second.incarnation == holder.incarnation) {
    version->second.workers.erase(known);
  }
}

void KnownHolders::KeepOnly(absl::FunctionRef<bool(const WeightVersion&)> wanted) {
  for (auto version = versions_.begin(); version != versions_.end();) {
    const bool kept = wanted({version->first, version->second.birth});
    version = kept ? std::next(version) : versions_.erase(version);
  }
}

std::vector<Holder> KnownHolders::Of(const WeightVersion& name) const {
  std::vector<Holder> holders;
  const auto version = versions_.find(name.number);
  if (version == versions_.end() || version->second.birth != name.birth) return holders;
  std::vector<std::pair<uint64_t, Holder>> heard;
  for (const auto& [worker, known] : version->second.workers) {
    heard.push_back({known.heard, {worker, known.incarnation}});
  }
  std::sort(heard.begin(), heard.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& one : heard) holders.push_back(std::move(one.second));
  return holders;
}

std::string EncodeHolders(absl::Span<const Holder> holders) {
  std::string bytes;
  for (const Holder& holder : holders) {
    uint8_t head[kHead];
    StoreLittle(head, holder.incarnation);
    StoreLittle(head + sizeof(uint64_t), static_cast<uint16_t>(holder.worker.size()));
    bytes.append(reinterpret_cast<const char*>(head), kHead);
    bytes += holder.worker;
  }
  return bytes;
}

absl::StatusOr<std::vector<Holder>> DecodeHolders(absl::string_view bytes) {
  std::vector<Holder> holders;
  while (!bytes.empty()) {
    const size_t size =
        bytes.size() < kHead ? 0 : LoadLittle<uint16_t>(Bytes(bytes.substr(sizeof(uint64_t))));
    if (size == 0 || size > kMaxWorkerBytes || bytes.size() < kHead + size ||
        holders.size() == kMaxHolders) {
      return absl::InvalidArgumentError(
          "the first owner named members that have weights in a way that this one does not read: "
          "run the same release on both");
    }
    holders.push_back({std::string(bytes.substr(kHead, size)), LoadLittle<uint64_t>(Bytes(bytes))});
    bytes.remove_prefix(kHead + size);
  }
  return holders;
}

}  // namespace tryst
