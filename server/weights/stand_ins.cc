#include "server/weights/stand_ins.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "weights/boxes.h"

namespace tryst {
namespace {

constexpr size_t kAskedAtOnce = 8;

bool Anybody(uint32_t) { return true; }

bool IsOver(const Patience& patience) {
  return patience.cancelled() || patience.left() == absl::ZeroDuration();
}

// Whether this life of a member has nothing of the version.
bool HasNothing(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsUnavailable(status) || absl::IsNotFound(status);
}

bool Settled(const StandIns::Lost& lost) {
  if (!lost.wanted.empty()) {
    return std::all_of(lost.wanted.begin(), lost.wanted.end(), [&](const Box& wanted) {
      return lost.cover.Choose(wanted, Anybody).has_value();
    });
  }
  return lost.digest != nullptr && lost.cover.Choose(Anybody).has_value();
}

// Where the box's digest stands in the list of its owner.
std::optional<size_t> PlaceOf(const DeclaredLayouts& layouts, uint32_t owner, uint32_t tensor,
                              const Box& box) {
  const std::vector<Box> boxes = BoxesOf(layouts.tensors[tensor], owner);
  const auto found = std::find(boxes.begin(), boxes.end(), box);
  if (found == boxes.end()) return std::nullopt;
  return ListOffsets(layouts.tensors, owner)[tensor] + (found - boxes.begin());
}

WeightAsk HoldersAsk(const WeightVersion& version, uint64_t asker) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kHolders;
  ask.number = version.number;
  ask.birth = version.birth;
  ask.incarnation = asker;
  return ask;
}

}  // namespace

// False: nobody leads, or by its log nobody has the version.
bool StandIns::AskLeader(const WeightVersion& version, const Patience& patience) const {
  const WeightAsk ask = HoldersAsk(version, parts_.asker);
  for (const std::string& leader : parts_.leaders) {
    const WeightCalls::Call call{leader, ask, 0, kReach};
    const Patience of_try(std::min(patience.left(), kTry), patience.cancellation);
    const auto answer = std::move(parts_.calls->Ask({call}, of_try)[0]);
    if (!answer.ok()) continue;  // It does not lead.
    const auto holders = DecodeHolders(TextOf(*answer));
    if (!holders.ok()) return false;
    // For each that asks they begin elsewhere, and the last that is noted comes first.
    for (auto holder = holders->rbegin(); holder != holders->rend(); ++holder) {
      parts_.notes->Add(version, *holder, /*of_itself=*/true);
    }
    return !holders->empty();
  }
  return false;
}

// Owners know whom they have sent parts, and members of whom they have heard.
void StandIns::AskAround(const WeightVersion& version, const Patience& patience) const {
  const WeightAsk ask = HoldersAsk(version, 0);
  std::vector<WeightCalls::Call> calls;
  for (const Holder& holder : parts_.notes->Of(version)) {
    if (calls.size() == kAskedAtOnce) break;
    if (holder.worker != parts_.self) calls.push_back({holder.worker, ask, holder.incarnation});
  }
  // Whom it takes time to reach is asked last.
  const size_t owners = std::min(parts_.owners.size(), kMostOthers);
  for (size_t rank = 0; rank < owners; ++rank) {
    calls.push_back({parts_.owners[rank], ask, 0, ReachOfEach(owners)});
  }
  const Patience of_try(std::min(patience.left(), kTry), patience.cancellation);
  std::vector<Holder> named;
  for (const auto& answer : parts_.calls->Ask(calls, of_try)) {
    const auto holders = answer.ok() ? DecodeHolders(TextOf(*answer)) : answer.status();
    if (holders.ok()) named.insert(named.end(), holders->begin(), holders->end());
  }
  // Many members may be told the same ones at one time, and each is to begin elsewhere.
  std::shuffle(named.begin(), named.end(), absl::BitGen());
  for (const Holder& holder : named) parts_.notes->Add(version, holder, /*of_itself=*/false);
}

std::vector<Holder> StandIns::HoldersOf(const WeightVersion& version,
                                        const Patience& patience) const {
  if (!AskLeader(version, patience)) AskAround(version, patience);
  std::vector<Holder> holders = parts_.notes->Of(version);
  holders.erase(
      std::remove_if(holders.begin(), holders.end(),
                     [this](const Holder& holder) { return holder.worker == parts_.self; }),
      holders.end());
  return holders;
}

absl::StatusOr<Tensor> StandIns::Answer(const WeightAsk& ask, const WeightVersion& version,
                                        absl::FunctionRef<absl::Status(const Tensor&)> accepts,
                                        const Patience& patience) const {
  std::vector<WeightCalls::Call> calls;
  for (const Holder& holder : HoldersOf(version, patience)) {
    if (calls.size() == kAskedAtOnce) break;
    calls.push_back({holder.worker, ask, holder.incarnation});
  }
  absl::Status why = absl::NotFoundError(
      absl::StrCat("no member has parts of version ", version.number, " for others"));
  if (calls.empty()) return why;
  const Patience of_try(std::min(patience.left(), kTry), patience.cancellation);
  for (auto& answer : parts_.calls->Ask(calls, of_try)) {
    why = answer.ok() ? accepts(*answer) : answer.status();
    if (why.ok()) return std::move(answer);
  }
  return why;
}

void StandIns::AskFor(uint32_t owner, absl::Span<const Holder> of, uint32_t first,
                      const SealedVersion& version, const DeclaredLayouts& layouts,
                      const Patience& patience, std::vector<Lost>* lost, Found* found) const {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kHeld;
  ask.number = version.name.number;
  ask.birth = version.name.birth;
  ask.owner = owner;
  std::vector<WeightCalls::Call> calls;
  std::vector<uint32_t> asked;  // Whose place among the holders each call has.
  for (const Holder& holder : of) {
    asked.push_back(first + static_cast<uint32_t>(calls.size()));
    calls.push_back({holder.worker, ask, holder.incarnation});
  }
  for (size_t i = 0; i < kMaxHeldAnswers && !calls.empty() && !IsOver(patience); ++i) {
    const auto answers =
        parts_.calls->Ask(calls, Patience(std::min(patience.left(), kTry), patience.cancellation));
    std::vector<WeightCalls::Call> further;
    std::vector<uint32_t> asked_further;
    for (size_t at = 0; at < answers.size(); ++at) {
      if (!answers[at].ok()) {
        // Who is late, or asked for too much at once, may only be slow.
        if (HasNothing(answers[at].status()) && !patience.cancelled()) {
          parts_.notes->Remove({version.name.number, version.name.birth},
                               {calls[at].owner, calls[at].incarnation});
        }
        continue;
      }
      auto held = DecodeHeld(TextOf(*answers[at]));
      if (!held.ok()) continue;
      // There may be more after so many.
      if (held->parts.size() == kMaxHeldParts) {
        further.push_back(calls[at]);
        further.back().ask.goes_on = true;
        further.back().ask.tensor = held->parts.back().tensor;
        further.back().ask.box = held->parts.back().box;
        asked_further.push_back(asked[at]);
      }
      Note(*std::move(held), owner, asked[at], version, layouts, lost, found);
    }
    calls = std::move(further);
    asked = std::move(asked_further);
  }
  const auto list = found->lists.find(owner);
  if (list == found->lists.end()) return;
  for (Lost& one : *lost) {
    if (one.digest != nullptr) continue;
    const auto place = PlaceOf(layouts, owner, one.tensor, one.cover.box());
    if (place.has_value()) one.digest = &list->second[*place];
  }
}

// What one holder has answered.
void StandIns::Note(HeldParts held, uint32_t owner, uint32_t holder, const SealedVersion& version,
                    const DeclaredLayouts& layouts, std::vector<Lost>* lost, Found* found) {
  if (found->lists.count(owner) == 0 &&
      held.list.size() == ListOffsets(layouts.tensors, owner).back() &&
      ListDigest(version.name, owner, held.list) == version.lists[owner]) {
    found->lists[owner] = std::move(held.list);
  }
  std::map<uint32_t, std::vector<const HeldPart*>> by_tensor;
  for (const HeldPart& part : held.parts) {
    if (part.tensor < layouts.tensors.size() &&
        Within(part.box, layouts.tensors[part.tensor].shape)) {
      by_tensor[part.tensor].push_back(&part);
    }
  }
  for (Lost& one : *lost) {
    // Where parts are wanted, the room is for what brings some of them.
    const auto brings = [&](const HeldPart& part) {
      Box both;
      return one.wanted.empty() ||
             (part.box.rank() == one.cover.box().rank() &&
              std::any_of(one.wanted.begin(), one.wanted.end(),
                          [&](const Box& wanted) { return Intersect(wanted, part.box, &both); }));
    };
    for (const HeldPart* const part : by_tensor[one.tensor]) {
      if (brings(*part)) one.cover.Add(part->box, holder, part->digest);
    }
  }
}

StandIns::Found StandIns::Find(const SealedVersion& version, const DeclaredLayouts& layouts,
                               const std::set<std::string>& without, const Patience& patience,
                               std::vector<Lost>* lost) const {
  // The holders may have the list of another owner of the same box.
  constexpr size_t kMostLists = 3;
  Found found;
  found.holders = HoldersOf({version.name.number, version.name.birth}, patience);
  found.holders.erase(
      std::remove_if(found.holders.begin(), found.holders.end(),
                     [&](const Holder& one) { return without.count(one.worker) > 0; }),
      found.holders.end());
  const auto settled = [lost] { return std::all_of(lost->begin(), lost->end(), Settled); };
  for (size_t list = 0; list < kMostLists && !settled(); ++list) {
    // Whoever has parts says so for any owner of the box; the list alone is an owner's own.
    const auto is_of = [list](const Lost& one) {
      return list < (one.wanted.empty() ? one.owners.size() : 1);
    };
    std::set<uint32_t> owners;
    for (const Lost& one : *lost) {
      if (is_of(one) && !Settled(one)) owners.insert(one.owners[list]);
    }
    for (const uint32_t owner : owners) {
      const auto settled_of_owner = [&] {
        return std::all_of(lost->begin(), lost->end(), [&](const Lost& one) {
          return !is_of(one) || one.owners[list] != owner || Settled(one);
        });
      };
      const absl::Span<const Holder> all = found.holders;
      for (size_t at = 0; at < all.size() && !settled_of_owner(); at += kAskedAtOnce) {
        if (IsOver(patience)) return found;
        AskFor(owner, all.subspan(at, kAskedAtOnce), at, version, layouts, patience, lost, &found);
      }
    }
  }
  return found;
}

}  // namespace tryst
