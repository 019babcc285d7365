// What a member does where the owners of boxes are gone.
#include <algorithm>
#include <utility>

#include "server/weights/weight_fetch.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

// Stands for this member among holders.
constexpr uint32_t kOwn = UINT32_MAX;

}  // namespace

// Has members stand in for owners. What nobody has stays an orphan. The first who say that they
// have a box are asked for it; where they do not, others are.
absl::Status WeightMember::Rescue(Fetching* fetching) {
  constexpr int kMostRounds = 3;
  std::set<std::string> tried = fetching->bad_holders;
  for (int i = 0; i < kMostRounds && !fetching->orphans.empty(); ++i) {
    const size_t before = tried.size();
    const absl::Status rescued = RescueOnce(fetching, &tried);
    if (!rescued.ok()) return rescued;
    // At first a life that is over may have been asked, of whoever has another one now.
    if (i > 0 && tried.size() == before) break;
  }
  const Patience& patience = fetching->patience;
  const bool over = patience.cancelled() || patience.left() == absl::ZeroDuration();
  return fetching->orphans.empty() || over ? absl::OkStatus() : RescueParts(fetching);
}

// This member's own parts count, too.
void WeightMember::AddOwnParts(const WeightVersion& version,
                               std::vector<StandIns::Lost>* lost) const {
  if (relay_ == nullptr) return;
  std::map<uint32_t, std::vector<StandIns::Lost*>> by_tensor;
  for (StandIns::Lost& one : *lost) by_tensor[one.tensor].push_back(&one);
  for (const HeldPart& part : relay_->PartsOf(version)) {
    for (StandIns::Lost* const one : by_tensor[part.tensor]) {
      one->cover.Add(part.box, kOwn, part.digest);
    }
  }
}

// `tried`: who is not asked any more; those who did not have what they said are added.
absl::Status WeightMember::RescueOnce(Fetching* fetching, std::set<std::string>* tried) {
  const WeightVersion version{fetching->version.name.number, fetching->version.name.birth};
  std::map<std::pair<uint32_t, Box>, std::vector<Part*>> by_box;
  for (Part* const part : std::exchange(fetching->orphans, {})) {
    by_box[{part->name.tensor, part->source.box}].push_back(part);
  }
  std::vector<StandIns::Lost> lost;
  std::vector<Rescued> boxes;
  for (auto& [name, parts] : by_box) {
    Rescued box;
    box.lost = lost.size();
    box.item.tensor = parts.front()->item->tensor;
    box.item.box = name.second;
    box.item.places = Dense(name.second.extent);
    lost.push_back({name.first, parts.front()->source.owners, BoxCover(name.second)});
    box.parts = std::move(parts);
    boxes.push_back(std::move(box));
  }
  AddOwnParts(version, &lost);
  const StandIns::Found found =
      stand_ins_.Find(fetching->version, fetching->layouts, *tried, fetching->patience, &lost);
  if (relay_ != nullptr) {
    for (const auto& [owner, list] : found.lists) relay_->ProveList(version, owner, list);
  }
  std::vector<Part*> missing;
  for (size_t at = 0; at < boxes.size();) {
    std::vector<Rescued*> batch;
    uint64_t bytes = 0;
    do {
      batch.push_back(&boxes[at]);
      bytes += boxes[at].item.box.elements() * boxes[at].parts.front()->element_bytes;
    } while (++at < boxes.size() && bytes < kMaxPartBytes);
    const absl::Status rescued = RescueBoxes(fetching, found, &lost, std::move(batch), &missing);
    if (!rescued.ok()) return rescued;
  }
  const std::set<Part*> is_missing(missing.begin(), missing.end());
  for (const Rescued& box : boxes) {
    if (is_missing.count(box.parts.front()) > 0) tried->insert(box.asked.begin(), box.asked.end());
  }
  fetching->orphans = std::move(missing);
  return absl::OkStatus();
}

// Boxes that are put together at one time. Where one has turned out wrong, or somebody does not
// have what he said, it is tried without him.
absl::Status WeightMember::RescueBoxes(Fetching* fetching, const StandIns::Found& found,
                                       std::vector<StandIns::Lost>* lost,
                                       std::vector<Rescued*> boxes, std::vector<Part*>* missing) {
  constexpr int kMostTries = 4;
  for (int i = 0; i < kMostTries && !boxes.empty(); ++i) {
    std::deque<Part> chosen;
    for (Rescued* const box : std::exchange(boxes, {})) {
      if (BeginBox(*fetching, found, &(*lost)[box->lost], box, &chosen)) {
        boxes.push_back(box);
      } else {
        missing->insert(missing->end(), box->parts.begin(), box->parts.end());
      }
    }
    std::vector<Part*> left;
    for (Part& part : chosen) left.push_back(&part);
    const absl::Status fetched = FetchParts(fetching, std::move(left));
    if (!fetched.ok()) return fetched;
    for (const Part& part : chosen) {
      part.rescued->senders.insert(part.route.referral()->holder.worker);
    }
    for (const Part* const part : std::exchange(fetching->orphans, {})) {
      part->rescued->whole = false;
      (*lost)[part->rescued->lost].cover.Forget(part->name.box);
    }
    for (Rescued* const box : std::exchange(boxes, {})) {
      const Tensor& bytes = box->item.into;
      const bool right =
          box->whole && BoxDigest(bytes.bytes(), BlockDigests(bytes.data(), bytes.bytes())) ==
                            *(*lost)[box->lost].digest;
      if (right) {
        const absl::Status ended = EndBox(box);
        if (!ended.ok()) return ended;
        continue;
      }
      if (box->whole) box->bad.insert(box->senders.begin(), box->senders.end());
      boxes.push_back(box);
    }
  }
  for (const Rescued* const box : boxes) {
    missing->insert(missing->end(), box->parts.begin(), box->parts.end());
  }
  return absl::OkStatus();
}

// False: members do not have all of it.
bool WeightMember::BeginBox(const Fetching& fetching, const StandIns::Found& found,
                            StandIns::Lost* lost, Rescued* box, std::deque<Part>* chosen) const {
  const auto worker = [&](uint32_t holder) {
    return holder == kOwn ? server_->worker() : found.holders[holder].worker;
  };
  const auto cover = lost->cover.Choose([&](uint32_t holder) {
    return box->bad.count(worker(holder)) == 0 && fetching.bad_holders.count(worker(holder)) == 0;
  });
  if (!cover.has_value() || lost->digest == nullptr) return false;
  const Part& part = *box->parts.front();
  if (!box->item.into.valid()) {
    const auto shape = TensorShape::Make(box->item.box.extent);
    auto bytes = shape.ok() ? Tensor::Allocate(part.item->into.dtype(), *shape)
                            : absl::StatusOr<Tensor>(shape.status());
    if (!bytes.ok()) return false;
    box->item.into = *std::move(bytes);
  }
  box->whole = true;
  box->senders.clear();
  for (const BoxCover::Part& taken : *cover) {
    bool own = false;
    std::vector<Holder> holders;
    for (const uint32_t holder : taken.holders) {
      own = own || holder == kOwn;
      if (holder == kOwn) continue;
      holders.push_back(found.holders[holder]);
      box->asked.insert(worker(holder));
    }
    if (holders.empty()) holders.push_back({server_->worker(), 0});
    const bool only_own = own && taken.holders.size() == 1;
    PartName name = part.name;
    name.box = taken.box;
    Part one{&box->item,
             std::move(name),
             part.element_bytes,
             {box->item.box, {}, taken.box},
             PartRoute(std::move(holders))};
    one.rescued = box;
    if (own && TakeHeld(one)) {
      box->senders.insert(server_->worker());
    } else if (!only_own) {
      chosen->push_back(std::move(one));
    } else {
      box->whole = false;
      lost->cover.Forget(taken.box);
    }
  }
  return true;
}

// Its digest was right.
absl::Status WeightMember::EndBox(Rescued* box) const {
  const Box& whole = box->item.box;
  for (const Part* const part : box->parts) {
    const Box& wanted = part->name.box;
    const Strides lies = PartOf(whole, box->item.places, wanted);
    const absl::Status put = Put(*part->item, wanted, box->item.into, lies);
    if (!put.ok()) return put;
    if (relay_ == nullptr) continue;
    const auto shape = TensorShape::Make(wanted.extent);
    auto own = shape.ok() ? AllocateShared(server_, part->item->into.dtype(), *shape)
                          : absl::StatusOr<Tensor>(shape.status());
    if (!own.ok()) continue;
    RunCopy(PlanCopy(wanted.extent, part->element_bytes, lies, Dense(wanted.extent)),
            box->item.into.data(), own->mutable_data());
    HaveForOthers(*part, *own);
  }
  box->item.into.Reset();
  return absl::OkStatus();
}

// What was right as a whole is right in each part, as if its owner had given that a digest.
void WeightMember::HaveForOthers(const Part& part, const Tensor& own) const {
  if (!relay_->Expect(part.name, part.bytes())) return;
  std::optional<Digest> digest;
  if (part.name.box != part.source.box) digest = DigestOf(own.data(), own.bytes());
  relay_->Put(part.name, own, digest);
}

// ---- Boxes of which members have only a part ----

// What is wanted of them is put together from parts of members, each held against the digest that
// its owner gave it. What nobody has stays an orphan.
absl::Status WeightMember::RescueParts(Fetching* fetching) {
  const WeightVersion version{fetching->version.name.number, fetching->version.name.birth};
  const std::vector<Part*> orphans = std::exchange(fetching->orphans, {});
  std::map<std::pair<uint32_t, Box>, size_t> by_box;
  std::vector<StandIns::Lost> lost;
  for (const Part* const part : orphans) {
    const auto found = by_box.try_emplace({part->name.tensor, part->source.box}, lost.size());
    if (found.second) {
      lost.push_back({part->name.tensor, part->source.owners, BoxCover(part->source.box)});
    }
    lost[found.first->second].wanted.push_back(part->name.box);
  }
  AddOwnParts(version, &lost);
  const StandIns::Found found = stand_ins_.Find(fetching->version, fetching->layouts,
                                                fetching->bad_holders, fetching->patience, &lost);
  std::vector<Part*> missing;
  for (size_t at = 0; at < orphans.size();) {
    std::vector<Wanted> batch;
    uint64_t bytes = 0;
    do {
      Part* const part = orphans[at];
      batch.push_back({part, &lost[by_box[{part->name.tensor, part->source.box}]]});
      bytes += part->bytes();
    } while (++at < orphans.size() && bytes < kMaxPartBytes);
    const absl::Status rescued = RescueWanted(fetching, found, absl::MakeSpan(batch));
    if (!rescued.ok()) return rescued;
    for (const Wanted& one : batch) {
      if (!one.whole) missing.push_back(one.part);
    }
  }
  fetching->orphans = std::move(missing);
  return absl::OkStatus();
}

// Where somebody does not have what he said, or it is wrong, what is wanted is tried without him.
absl::Status WeightMember::RescueWanted(Fetching* fetching, const StandIns::Found& found,
                                        absl::Span<Wanted> wanted) {
  constexpr int kMostTries = 4;
  const auto may_be_asked = [&](uint32_t holder) {
    return holder == kOwn || fetching->bad_holders.count(found.holders[holder].worker) == 0;
  };
  for (int i = 0; i < kMostTries; ++i) {
    std::map<std::pair<StandIns::Lost*, Box>, BoxCover::Part> taken;
    std::vector<Wanted*> of;
    for (Wanted& one : wanted) {
      if (one.whole) continue;
      auto cover = one.lost->cover.Choose(one.part->name.box, may_be_asked);
      if (!cover.has_value()) continue;
      for (BoxCover::Part& share : *cover) taken[{one.lost, share.box}] = std::move(share);
      one.whole = true;  // Unless one of them does not come.
      of.push_back(&one);
      const auto shape = TensorShape::Make(one.part->name.box.extent);
      if (relay_ == nullptr || one.own.valid() || !shape.ok()) continue;
      auto own = AllocateShared(server_, one.part->item->into.dtype(), *shape);
      if (own.ok()) one.own = *std::move(own);
    }
    if (of.empty()) return absl::OkStatus();
    for (auto share = taken.begin(); share != taken.end();) {
      StandIns::Lost* const lost = share->first.first;
      std::vector<Wanted*> of_lost;
      for (Wanted* const one : of) {
        if (one->lost == lost) of_lost.push_back(one);
      }
      const uint64_t element_bytes = of_lost.front()->part->element_bytes;
      std::vector<BoxCover::Part> batch;
      uint64_t bytes = 0;
      do {
        bytes += share->first.second.elements() * element_bytes;
        batch.push_back(std::move(share->second));
      } while (++share != taken.end() && share->first.first == lost && bytes < kMaxPartBytes);
      const absl::Status fetched = FetchTaken(fetching, found, batch, of_lost);
      if (!fetched.ok()) return fetched;
    }
    for (const Wanted* const one : of) {
      if (one->whole && one->own.valid()) HaveForOthers(*one->part, one->own);
    }
  }
  return absl::OkStatus();
}

// Parts that were taken of one box, and what is wanted of it.
absl::Status WeightMember::FetchTaken(Fetching* fetching, const StandIns::Found& found,
                                      absl::Span<const BoxCover::Part> taken,
                                      absl::Span<Wanted* const> of) {
  const Part& first = *of.front()->part;
  std::deque<Rescued> boxes;
  std::deque<Part> parts;
  std::vector<Part*> left;
  for (const BoxCover::Part& share : taken) {
    Rescued& box = boxes.emplace_back();
    box.item.tensor = first.item->tensor;
    box.item.box = share.box;
    box.item.places = Dense(share.box.extent);
    const uint64_t bytes = static_cast<uint64_t>(share.box.elements()) * first.element_bytes;
    const auto shape = TensorShape::Make(share.box.extent);
    auto into = shape.ok() && bytes <= kMaxPartBytes
                    ? Tensor::Allocate(first.item->into.dtype(), *shape)
                    : absl::StatusOr<Tensor>(absl::ResourceExhaustedError(""));
    box.whole = into.ok();
    if (!box.whole) continue;
    box.item.into = *std::move(into);
    std::vector<Holder> holders;
    bool own = false;
    for (const uint32_t holder : share.holders) {
      own = own || holder == kOwn;
      if (holder != kOwn) holders.push_back(found.holders[holder]);
    }
    const bool only_own = holders.empty();
    if (only_own) holders.push_back({server_->worker(), 0});
    PartName name = first.name;
    name.box = share.box;
    Part part{&box.item,
              std::move(name),
              first.element_bytes,
              {share.box, {}, share.box},
              PartRoute(std::move(holders))};
    part.rescued = &box;
    part.digest = share.digest;
    if (own && TakeHeld(part)) continue;
    box.whole = !only_own;
    if (!box.whole) continue;
    parts.push_back(std::move(part));
    left.push_back(&parts.back());
  }
  const absl::Status fetched = FetchParts(fetching, std::move(left));
  if (!fetched.ok()) return fetched;
  for (Part* const part : std::exchange(fetching->orphans, {})) part->rescued->whole = false;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Rescued& box = boxes[i];
    for (Wanted* const one : of) {
      const Box& wanted = one->part->name.box;
      Box both;
      if (!Intersect(wanted, box.item.box, &both)) continue;
      one->whole = one->whole && box.whole;
      if (!box.whole) continue;
      const Strides lies = PartOf(box.item.box, box.item.places, both);
      const absl::Status put = Put(*one->part->item, both, box.item.into, lies);
      if (!put.ok()) return put;
      if (!one->own.valid()) continue;
      RunCopy(PlanCopy(both.extent, first.element_bytes, lies,
                       PartOf(wanted, Dense(wanted.extent), both)),
              box.item.into.data(), one->own.mutable_data());
    }
    if (!box.whole) of.front()->lost->cover.Forget(box.item.box, taken[i].holders);
  }
  return absl::OkStatus();
}

}  // namespace tryst
