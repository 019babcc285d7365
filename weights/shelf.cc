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
  active_ = active;
  open_ = open;
  DropIf([this](const WeightVersion& version) {
    return version != active_ && std::find(open_.begin(), open_.end(), version) == open_.end();
  });
}

PartShelf::Part* PartShelf::FindPart(const PartName& name) {
  const auto version = versions_.find(name.version.number);
  if (version == versions_.end() || version->second.birth != name.version.birth) return nullptr;
  const auto part = version->second.parts.find({name.tensor, name.box});
  return part == version->second.parts.end() ? nullptr : &part->second;
}

bool PartShelf::Expect(const PartName& name, uint64_t bytes) {
  const WeightVersion& wanted = name.version;
  if (wanted.number == 0 ||
      (wanted != active_ && std::find(open_.begin(), open_.end(), wanted) == open_.end())) {
    return false;
  }
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

void PartShelf::Put(const PartName& name, const Tensor& bytes) {
  Part* const part = FindPart(name);
  if (part == nullptr) return;
  if (part->coming > 0) --part->coming;
  part->held = bytes;  // Whoever asked for it too got the same bytes.
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

Tensor PartShelf::BaseOf(const PartName& name, uint64_t number) const {
  const auto version = versions_.find(number);
  Tensor bytes;
  if (version == versions_.end()) return bytes;
  PartName of_base = name;
  of_base.version = {number, version->second.birth};
  Find(of_base, &bytes);
  return bytes;
}

}  // namespace tryst
