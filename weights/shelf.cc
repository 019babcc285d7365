#include "weights/shelf.h"

#include <algorithm>

namespace tryst {

template <typename Goes>
void PartShelf::DropIf(const Goes& goes) {
  for (auto version = versions_.begin(); version != versions_.end();) {
    if (!goes(WeightVersion{version->first, version->second.birth})) {
      ++version;
      continue;
    }
    for (const auto& part : version->second.parts) bytes_ -= part.second.bytes;
    version = versions_.erase(version);
  }
}

void PartShelf::Allow(const WeightVersion& active, const std::vector<WeightVersion>& open) {
  if (active.number != 0) active_ = active;
  for (const WeightVersion& one : open) {
    if (one.number == active_.number && one != active_) active_ = {};
  }
  open_ = open;
  DropIf([this](const WeightVersion& version) { return !Allows(version); });
}

void PartShelf::Clear() {
  active_ = {};
  open_.clear();
  DropIf([](const WeightVersion&) { return true; });
}

bool PartShelf::Allows(const WeightVersion& version) const {
  return version.number != 0 &&
         (version == active_ || std::find(open_.begin(), open_.end(), version) != open_.end());
}

PartShelf::Part* PartShelf::FindPart(const PartName& name) {
  const auto version = versions_.find(name.version.number);
  if (version == versions_.end() || version->second.birth != name.version.birth) return nullptr;
  const auto part = version->second.parts.find({name.tensor, name.box});
  return part == version->second.parts.end() ? nullptr : &part->second;
}

bool PartShelf::Expect(const PartName& name, uint64_t bytes) {
  const WeightVersion& wanted = name.version;
  if (!Allows(wanted)) return false;
  Part* part = FindPart(name);
  if (part == nullptr) {
    DropIf([&](const WeightVersion& version) {
      return wanted != active_ && version != active_ && version != wanted;
    });
    if (bytes_ + bytes > max_bytes_) return false;
    Version& version = versions_[wanted.number];
    version.birth = wanted.birth;
    part = &version.parts[{name.tensor, name.box}];
    part->bytes = bytes;
    bytes_ += bytes;
  }
  ++part->coming;
  return true;
}

void PartShelf::Put(const PartName& name, const Tensor& bytes,
                    const std::optional<Digest>& digest) {
  Part* const part = FindPart(name);
  if (part == nullptr) return;
  if (part->coming > 0) --part->coming;
  part->held = bytes;  // Whoever asked for it too got the same bytes.
  part->digest = digest;
}

void PartShelf::GiveUp(const PartName& name) {
  Part* const part = FindPart(name);
  if (part == nullptr) return;
  if (part->coming > 0) --part->coming;
  if (part->coming > 0 || part->held.valid()) return;
  bytes_ -= part->bytes;
  versions_[name.version.number].parts.erase({name.tensor, name.box});
}

PartShelf::State PartShelf::Find(const PartName& name, Tensor* bytes) const {
  const Part* const part = const_cast<PartShelf*>(this)->FindPart(name);
  if (part == nullptr) return State::kGone;
  if (!part->held.valid()) return State::kComing;
  *bytes = part->held;
  return State::kHeld;
}

std::vector<WeightVersion> PartShelf::Held() const {
  std::vector<WeightVersion> held;
  for (const auto& [number, version] : versions_) {
    if (std::any_of(version.parts.begin(), version.parts.end(),
                    [](const auto& part) { return part.second.held.valid(); })) {
      held.push_back({number, version.birth});
    }
  }
  return held;
}

std::vector<HeldPart> PartShelf::PartsOf(const WeightVersion& name, size_t most,
                                         absl::FunctionRef<bool(uint32_t, const Box&)> wanted,
                                         const std::pair<uint32_t, Box>* after) const {
  std::vector<HeldPart> parts;
  const auto version = versions_.find(name.number);
  if (version == versions_.end() || version->second.birth != name.birth) return parts;
  const auto& all = version->second.parts;
  for (auto at = after == nullptr ? all.begin() : all.upper_bound(*after); at != all.end(); ++at) {
    if (parts.size() == most) break;
    const auto& [part, state] = *at;
    if (state.held.valid() && wanted(part.first, part.second)) {
      parts.push_back({part.first, part.second, state.digest});
    }
  }
  return parts;
}

Tensor PartShelf::BaseOf(const PartName& name, const Tensor& held, uint64_t number) const {
  const auto version = versions_.find(number);
  if (version == versions_.end()) return Tensor();
  PartName of_base = name;
  of_base.version = {number, version->second.birth};
  Tensor bytes;
  Find(of_base, &bytes);
  // The owners' layouts may have been others then.
  const bool is_alike =
      bytes.valid() && bytes.dtype() == held.dtype() && bytes.bytes() == held.bytes();
  return is_alike ? bytes : Tensor();
}

}  // namespace tryst
