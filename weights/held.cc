#include "weights/held.h"

#include <algorithm>

#include "base/little_endian.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

// So many are remembered of one box while parts are chosen.
constexpr size_t kMaxHoles = 1024;

template <typename T>
void Put(T number, std::string* bytes) {
  uint8_t stored[sizeof(T)];
  StoreLittle(stored, number);
  bytes->append(reinterpret_cast<const char*>(stored), sizeof(T));
}

// Takes numbers from the beginning of bytes; `ok` is false once they have ended.
struct Reader {
  absl::string_view bytes;
  bool ok = true;

  template <typename T>
  T Take() {
    ok = ok && bytes.size() >= sizeof(T);
    if (!ok) return 0;
    const T number = LoadLittle<T>(reinterpret_cast<const uint8_t*>(bytes.data()));
    bytes.remove_prefix(sizeof(T));
    return number;
  }
};

bool TakeBox(Reader* reader, Box* box) {
  const auto rank = reader->Take<uint8_t>();
  if (rank > TensorShape::kMaxRank) return false;
  for (int dim = 0; dim < rank; ++dim) {
    box->begin.push_back(static_cast<int64_t>(reader->Take<uint64_t>()));
    box->extent.push_back(static_cast<int64_t>(reader->Take<uint64_t>()));
    if (box->begin.back() < 0 || box->extent.back() < 0 ||
        box->begin.back() > INT64_MAX - box->extent.back()) {
      return false;
    }
  }
  return reader->ok;
}

// Adds what of `hole` is not in `part`.
void AddRest(Box hole, const Box& part, std::vector<Box>* rest) {
  Box both;
  if (!Intersect(hole, part, &both)) {
    rest->push_back(std::move(hole));
    return;
  }
  for (int dim = 0; dim < hole.rank(); ++dim) {
    const int64_t before = both.begin[dim] - hole.begin[dim];
    const int64_t after = hole.extent[dim] - before - both.extent[dim];
    if (before > 0) {
      rest->push_back(hole);
      rest->back().extent[dim] = before;
    }
    if (after > 0) {
      rest->push_back(hole);
      rest->back().begin[dim] = both.begin[dim] + both.extent[dim];
      rest->back().extent[dim] = after;
    }
    hole.begin[dim] = both.begin[dim];
    hole.extent[dim] = both.extent[dim];
  }
}

}  // namespace

std::string EncodeHeld(const HeldParts& held) {
  std::string bytes;
  Put(static_cast<uint32_t>(held.list.size()), &bytes);
  bytes += EncodeDigests(held.list);
  for (const auto& [tensor, box, digest] : held.parts) {
    Put(tensor, &bytes);
    Put(static_cast<uint8_t>(digest.has_value()), &bytes);
    if (digest.has_value()) bytes += EncodeDigests({*digest});
    Put(static_cast<uint8_t>(box.rank()), &bytes);
    for (int dim = 0; dim < box.rank(); ++dim) {
      Put(static_cast<uint64_t>(box.begin[dim]), &bytes);
      Put(static_cast<uint64_t>(box.extent[dim]), &bytes);
    }
  }
  return bytes;
}

absl::StatusOr<HeldParts> DecodeHeld(absl::string_view bytes) {
  const absl::Status wrong = absl::InvalidArgumentError(
      "a member said which weights it has in a way that this one does not read: run the same "
      "release on both");
  Reader reader{bytes};
  const size_t digests = reader.Take<uint32_t>();
  if (!reader.ok || digests > LayoutLimits::kMaxBoxes ||
      reader.bytes.size() < digests * Digest::kBytes) {
    return wrong;
  }
  HeldParts held;
  held.list = *DecodeDigests(reader.bytes.substr(0, digests * Digest::kBytes), digests);
  reader.bytes.remove_prefix(digests * Digest::kBytes);
  while (!reader.bytes.empty()) {
    if (held.parts.size() == kMaxHeldParts) return wrong;
    HeldPart part;
    part.tensor = reader.Take<uint32_t>();
    const auto digests_of_part = reader.Take<uint8_t>();
    if (digests_of_part > 1) return wrong;
    if (digests_of_part == 1) {
      const auto low = reader.Take<uint64_t>();
      part.digest = Digest{low, reader.Take<uint64_t>()};
    }
    if (!TakeBox(&reader, &part.box)) return wrong;
    held.parts.push_back(std::move(part));
  }
  return held;
}

void BoxCover::Add(const Box& part, uint32_t holder, const std::optional<Digest>& digest) {
  if (part.rank() != box_.rank() || part.empty() || !Contains(box_, part)) return;
  const auto found = parts_.find(part);
  if (found == parts_.end() && parts_.size() == kMaxParts) return;
  std::vector<Having>& holders = found == parts_.end() ? parts_[part] : found->second;
  // Each holder has one voice.
  if (holders.size() == kMaxHoldersOfPart ||
      std::any_of(holders.begin(), holders.end(),
                  [&](const Having& having) { return having.holder == holder; })) {
    return;
  }
  holders.push_back({holder, digest});
}

void BoxCover::Forget(const Box& part, const std::vector<uint32_t>& holders) {
  const auto found = parts_.find(part);
  if (found == parts_.end()) return;
  std::vector<Having>& all = found->second;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const Having& having) {
                             return std::find(holders.begin(), holders.end(), having.holder) !=
                                    holders.end();
                           }),
            all.end());
  if (all.empty()) parts_.erase(found);
}

std::optional<std::vector<BoxCover::Part>> BoxCover::Choose(
    absl::FunctionRef<bool(uint32_t)> may_be_asked) const {
  std::vector<Part> parts;
  for (const auto& [box, holders] : parts_) {
    Part part{box, {}, std::nullopt};
    for (const Having& having : holders) {
      if (may_be_asked(having.holder)) part.holders.push_back(having.holder);
    }
    if (!part.holders.empty()) parts.push_back(std::move(part));
  }
  // Large ones first: few are needed then.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.box.elements() > b.box.elements();
  });
  return Cover(box_, std::move(parts));
}

std::optional<std::vector<BoxCover::Part>> BoxCover::Choose(
    const Box& wanted, absl::FunctionRef<bool(uint32_t)> may_be_asked) const {
  std::vector<Part> parts;
  for (const auto& [box, holders] : parts_) {
    Box both;
    if (!Intersect(wanted, box, &both)) continue;
    std::map<std::pair<uint64_t, uint64_t>, std::vector<uint32_t>> by_digest;
    for (const Having& having : holders) {
      if (!having.digest.has_value() || !may_be_asked(having.holder)) continue;
      by_digest[{having.digest->low, having.digest->high}].push_back(having.holder);
    }
    const auto most = std::max_element(
        by_digest.begin(), by_digest.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    if (most == by_digest.end()) continue;
    parts.push_back({box, most->second, Digest{most->first.first, most->first.second}});
  }
  // Those that bring the most of it, and of these the ones that bring the least beside.
  const auto brings = [&](const Part& part) {
    Box both;
    Intersect(wanted, part.box, &both);
    return std::make_pair(-both.elements(), part.box.elements());
  };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return brings(a) < brings(b); });
  return Cover(wanted, std::move(parts));
}

// The first ones of `parts` that bring something, until there is every element of `wanted`.
std::optional<std::vector<BoxCover::Part>> BoxCover::Cover(const Box& wanted,
                                                           std::vector<Part> parts) {
  std::vector<Part> chosen;
  std::vector<Box> holes = {wanted};
  for (Part& part : parts) {
    Box both;
    if (std::none_of(holes.begin(), holes.end(),
                     [&](const Box& hole) { return Intersect(hole, part.box, &both); })) {
      continue;
    }
    std::vector<Box> rest;
    for (Box& hole : holes) AddRest(std::move(hole), part.box, &rest);
    chosen.push_back(std::move(part));
    holes = std::move(rest);
    if (holes.empty()) return chosen;
    if (holes.size() > kMaxHoles) break;
  }
  return std::nullopt;
}

}  // namespace tryst
