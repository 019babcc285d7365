#include "server/weights/weight_fetch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/printable.h"
#include "server/members/peer_calls.h"
#include "server/weights/device_boxes.h"
#include "weights/boxes.h"
#include "weights/delta.h"

namespace tryst {
namespace {

constexpr size_t kAsksAtOnce = 8;
constexpr int64_t kSuspectNs = 1'000'000'000;
// What is out may be more than a burst, and then time alone ends no pause.
constexpr absl::Duration kLeastPause = absl::Milliseconds(5);
// After so many members that have failed, in one fetch, the owners are asked for all the rest.
constexpr size_t kMostBadHolders = 3;
// Members are asked again after that time, however slow the path of an owner is.
constexpr absl::Duration kMostAwaits = absl::Minutes(5);

// Whether another owner of the same box may have what this one did not give.
bool AnotherMayHave(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsNotFound(status) ||
         absl::IsDataLoss(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

// Whether an owner that was asked twice has nothing of the version any more; a member may.
bool IsGone(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsNotFound(status) ||
         absl::IsDataLoss(status);
}

// A delta is decoded upon what lies in the host's memory alone.
uint64_t BaseOf(const WeightMember::Item& item) { return item.into.on_host() ? item.has : 0; }

// For who may be gone.
Patience Brief(const Patience& patience) {
  return Patience(std::min(patience.left(), StandIns::kTry), patience.cancellation);
}

// Before somebody who may have answered at once is asked again.
void PauseBriefly(const Patience& patience) {
  constexpr absl::Duration kBriefly = absl::Milliseconds(250);
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(std::min(kBriefly, patience.left())));
}

// How long one of several owners of the same box is waited for, before another one is asked.
absl::Duration TimeOfATry(size_t owners, absl::Duration left) {
  constexpr absl::Duration kLeast = absl::Seconds(2), kMost = absl::Seconds(30);
  if (owners == 1) return left;
  return std::min(left, std::clamp(left / static_cast<double>(owners + 1), kLeast, kMost));
}

}  // namespace

absl::StatusOr<SealedVersion> WeightMember::Find(uint64_t number, const Patience& patience) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kVersion;
  ask.number = number;
  const auto read = [&](const Tensor& answer) {
    auto version = DecodeSealed(TextOf(answer));
    if (version.ok() &&
        (version->lists.size() != owners_.size() || version->name.number != number)) {
      version = absl::DataLossError(absl::StrCat(owners_[0], " was asked for version ", number,
                                                 " and answered with another one"));
    }
    return version;
  };
  LogEntry entry;
  if (link_ != nullptr) {
    MutexLock lock(&group_mu_);
    const LogState& state = group_.state();
    const LogEntry* const open = state.FindOpen(number);
    // The log may have another version of the number that was active by the log before.
    if (number == last_active_.version.number) entry = last_active_;
    if (open != nullptr) entry = *open;
    if (number == state.active.version.number) entry = state.active;
  }
  if (entry.version.number != number || number == 0) {
    const auto answer = AskOwners(ask, patience);
    if (!answer.ok()) return answer.status();
    return read(*answer);
  }
  if (relay_ != nullptr) {
    auto own = relay_->FindSealed(entry.version);
    if (own.has_value() && RootOf(own->root) == entry.root) return *std::move(own);
  }
  // Whoever has it may say so, because the log names its root. The answer may lie where its sender
  // can still write, so what was checked is what is used.
  SealedVersion found;
  const auto answer = AskAnybody(
      ask, entry.version,
      [&](const Tensor& answer) {
        auto version = read(answer);
        if (!version.ok()) return version.status();
        if (version->name.birth == entry.version.birth && RootOf(version->root) == entry.root) {
          found = *std::move(version);
          return absl::OkStatus();
        }
        return absl::DataLossError(absl::StrCat("the owners have another version ", number,
                                                " than the one that the set's log has sealed"));
      },
      patience);
  if (!answer.ok()) return answer.status();
  return found;
}

// The call of the first owner, for a few others.
std::vector<WeightCalls::Call> WeightMember::ToOthers(const WeightCalls::Call& call) const {
  std::vector<WeightCalls::Call> calls;
  const size_t others = std::min(owners_.size() - 1, StandIns::kMostOthers);
  for (size_t rank = 1; rank <= others; ++rank) {
    calls.push_back(call);
    calls.back().owner = owners_[rank];
    calls.back().reach = StandIns::ReachOfEach(others);
  }
  return calls;
}

// What the first owner answers; or, where it is gone, another one that has something. Whoever has
// just started may reach nobody within one try, and so all of them are tried again.
// kDeadlineExceeded also where another one was there for a while, and had nothing.
absl::StatusOr<Tensor> WeightMember::AskOwners(const WeightAsk& ask, const Patience& patience) {
  WeightCalls::Call call{owners_[0], ask};
  call.reach = owners_.size() == 1 ? absl::InfiniteDuration() : StandIns::kReach;
  absl::Status had_nothing;
  for (;;) {
    auto first = std::move(calls_.Ask({call}, patience)[0]);
    if (owners_.size() == 1 || !absl::IsUnavailable(first.status())) return first;
    const auto others = ToOthers(call);
    auto answers = calls_.Ask(others, Brief(patience));
    for (size_t i = 0; i < others.size(); ++i) {
      if (answers[i].ok()) return std::move(answers[i]);
      const bool there = calls_.WasThere(others[i].owner);
      if (there && absl::IsDeadlineExceeded(answers[i].status())) had_nothing = answers[i].status();
    }
    if (calls_.WasThere(owners_[0])) return first;
    if (!patience.Check("").ok()) return had_nothing.ok() ? first : had_nothing;
  }
}

// What the first owner answers; or, where it has nothing, another one, or a member that has parts
// of the version. Who is away may be back later. REQUIRES: `accepts` takes the version's alone.
absl::StatusOr<Tensor> WeightMember::AskAnybody(
    const WeightAsk& ask, const WeightVersion& version,
    absl::FunctionRef<absl::Status(const Tensor&)> accepts, const Patience& patience) {
  absl::Status why;
  const auto accepted = [&](const absl::StatusOr<Tensor>& answer) {
    why = answer.ok() ? accepts(*answer) : answer.status();
    return why.ok();
  };
  WeightCalls::Call call{owners_[0], ask};
  call.reach = StandIns::kReach;
  for (;;) {
    auto first = std::move(calls_.Ask({call}, Brief(patience))[0]);
    if (accepted(first)) return first;
    const bool late = absl::IsDeadlineExceeded(why);
    const bool away = absl::IsUnavailable(why) && !calls_.WasThere(owners_[0]);
    if (!IsGone(why) && !late) return why;
    const absl::Status of_first = why;
    for (auto& answer : calls_.Ask(ToOthers(call), Brief(patience))) {
      if (accepted(answer)) return std::move(answer);
    }
    auto of_member = stand_ins_.Answer(ask, version, accepts, patience);
    if (of_member.ok()) return of_member;
    if (!(late || away) || !patience.Check("").ok()) return of_first;
  }
}

uint64_t WeightMember::NewestByLog() const {
  if (link_ == nullptr) return 0;
  MutexLock lock(&group_mu_);
  const LogState& state = group_.state();
  return state.open.empty() ? state.active.version.number : state.open.back().version.number;
}

absl::StatusOr<SealedVersion> WeightMember::Newer(uint64_t number, const Patience& patience) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kNewer;
  ask.number = number;
  absl::Status had_nothing;  // What somebody said who was there, and had no such version.
  for (;;) {
    // An owner's next life does not have what was sealed before, and the log names it.
    const uint64_t newest = NewestByLog();
    if (newest > number) {
      auto found = Find(newest, patience);
      // It may have been dropped or released meanwhile.
      if (!absl::IsNotFound(found.status()) && !absl::IsAborted(found.status())) return found;
    }
    const auto answer = AskOwners(ask, link_ == nullptr ? patience : Brief(patience));
    const bool away = absl::IsUnavailable(answer.status()) && !calls_.WasThere(owners_[0]);
    if (absl::IsDeadlineExceeded(answer.status())) had_nothing = answer.status();
    if (absl::IsDeadlineExceeded(answer.status()) || (away && link_ != nullptr)) {
      const absl::Status over = patience.Check(absl::StrCat("a version above ", number));
      if (absl::IsCancelled(over)) return over;
      if (over.ok()) {
        if (away) PauseBriefly(patience);  // That an owner is gone may be known at once.
        continue;
      }
    }
    if (away && !had_nothing.ok()) return had_nothing;
    if (!answer.ok()) return answer.status();
    auto version = DecodeSealed(TextOf(*answer));
    if (!version.ok()) return version;
    if (version->lists.size() != owners_.size() || version->name.number <= number) {
      return absl::DataLossError(
          absl::StrCat("an owner was asked for a version above ", number, " of ", owners_.size(),
                       " owners, and answered with version ", version->name.number, " of ",
                       version->lists.size(), " owners"));
    }
    return version;
  }
}

absl::StatusOr<std::shared_ptr<const DeclaredLayouts>> WeightMember::Layouts(
    const SealedVersion& version, const Patience& patience) {
  {
    MutexLock lock(&mu_);
    if (layouts_ != nullptr && layouts_digest_ == version.name.layouts) return layouts_;
  }
  if (relay_ != nullptr) {
    auto own = relay_->FindLayouts(version.name.layouts);
    if (own != nullptr) return own;
  }
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kLayouts;
  ask.digest = version.name.layouts.ToString();
  std::string text;  // A copy, since the sender may still write what it has sent.
  const auto answer = AskAnybody(
      ask, {version.name.number, version.name.birth},
      [&](const Tensor& answer) {
        text = std::string(TextOf(answer));
        return DigestOf(text) == version.name.layouts
                   ? absl::OkStatus()
                   : absl::DataLossError(
                         "the first owner sent other layouts of tensors than the version was "
                         "sealed with");
      },
      patience);
  if (!answer.ok()) return answer.status();
  auto declared = DecodeLayouts(text);
  if (!declared.ok()) return declared.status();
  if (declared->owners != owners_.size()) {
    return absl::DataLossError(
        "the layouts name another number of owners than this member was opened with: name the "
        "same owners everywhere");
  }
  auto layouts = std::make_shared<const DeclaredLayouts>(*std::move(declared));
  MutexLock lock(&mu_);
  layouts_digest_ = version.name.layouts;
  layouts_ = layouts;
  return layouts;
}

absl::StatusOr<std::shared_ptr<const WeightMember::OwnersList>> WeightMember::ListOf(
    const Fetching& fetching, uint32_t owner) {
  const SealedVersion& version = fetching.version;
  {
    MutexLock lock(&mu_);
    const auto found = lists_.find(owner);
    if (lists_of_ == version.root && found != lists_.end()) return found->second;
  }
  const WeightVersion name{version.name.number, version.name.birth};
  auto list = std::make_shared<OwnersList>();
  list->offsets = ListOffsets(fetching.layouts.tensors, owner);
  const auto right = [&](const std::vector<Digest>& digests) {
    return digests.size() == list->offsets.back() &&
           ListDigest(version.name, owner, digests) == version.lists[owner];
  };
  if (relay_ != nullptr) list->digests = relay_->FindList(name, owner);
  if (!right(list->digests)) {
    const auto answer = AskForList(fetching, owner);
    if (!answer.ok()) return answer.status();
    auto digests = DecodeDigests(TextOf(*answer), list->offsets.back());
    if (!digests.ok() || !right(*digests)) {
      return absl::DataLossError(absl::StrCat("owner ", owner,
                                              " sent other digests of its boxes than version ",
                                              version.name.number, " was sealed with"));
    }
    list->digests = *std::move(digests);
    if (relay_ != nullptr) relay_->ProveList(name, owner, list->digests);
  }
  MutexLock lock(&mu_);
  if (lists_of_ != version.root) lists_.clear();
  lists_of_ = version.root;
  lists_[owner] = list;
  return std::shared_ptr<const OwnersList>(std::move(list));
}

absl::StatusOr<Tensor> WeightMember::AskForList(const Fetching& fetching, uint32_t owner) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kList;
  ask.number = fetching.version.name.number;
  ask.birth = fetching.version.name.birth;
  const WeightCalls::Call call{owners_[owner], ask};
  const Patience& patience = fetching.patience;
  auto answer = std::move(calls_.Ask({call}, fetching.waits ? patience : Brief(patience))[0]);
  if (absl::IsDeadlineExceeded(answer.status()) && patience.left() > absl::ZeroDuration()) {
    return absl::UnavailableError(answer.status().message());
  }
  return answer;
}

absl::StatusOr<std::vector<WeightMember::Part>> WeightMember::Plan(
    const VersionName& version, const DeclaredLayouts& layouts,
    absl::Span<const Item> items) const {
  absl::flat_hash_map<absl::string_view, uint32_t> numbers;
  for (uint32_t i = 0; i < layouts.tensors.size(); ++i) numbers[layouts.tensors[i].name] = i;
  std::vector<Part> parts;
  for (const Item& item : items) {
    const auto number = numbers.find(item.tensor);
    if (number == numbers.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the set of weights has no tensor \"", Printable(item.tensor), "\""));
    }
    const TensorLayout& layout = layouts.tensors[number->second];
    if (!item.into.valid() || item.into.dtype() != layout.dtype || item.into.read_only()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", Printable(item.tensor), "\" can be fetched only into memory of type ",
          DTypeName(layout.dtype), " that may be written, and was to go into memory of type ",
          DTypeName(item.into.dtype())));
    }
    const absl::Status follows = CheckContext(item.context, item.into);
    if (!follows.ok()) return follows;
    auto sources = SourcesOf(layout, owners_.size(), item.box);
    if (!sources.ok()) return sources.status();
    const absl::Status view = CheckView(item.box.extent, item.places, item.into.shape().elements(),
                                        ViewUse::kDestination);
    if (!view.ok()) return view;
    for (const Source& source : *sources) {
      std::vector<Box> boxes;
      CutBox(source.part, kMaxPartBytes / DTypeBytes(layout.dtype), &boxes);
      for (Box& box : boxes) {
        // All replicas have their share.
        Part part{&item,
                  {{version.number, version.birth}, number->second, std::move(box)},
                  DTypeBytes(layout.dtype),
                  source,
                  PartRoute(source.owners, parts.size()),
                  BaseOf(item)};
        parts.push_back(std::move(part));
      }
    }
  }
  return parts;
}

// Copies a part that lies in `from` so, in the host's memory, to its place in the item's.
absl::Status WeightMember::Put(const Item& item, const Box& part, const Tensor& from,
                               const Strides& lies) {
  const Strides places = PartOf(item.box, item.places, part);
  const uint32_t element_bytes = DTypeBytes(item.into.dtype());
  if (item.into.on_host()) {
    RunCopy(PlanCopy(part.extent, element_bytes, lies, places), from.data(),
            item.into.mutable_data());
    return absl::OkStatus();
  }
  Tensor dense = from;
  if (lies.offset != 0 || !LiesDense(part.extent, lies)) {
    const auto shape = TensorShape::Make(part.extent);
    if (!shape.ok()) return shape.status();
    auto made = Tensor::Allocate(item.into.dtype(), *shape);
    if (!made.ok()) return made.status();
    dense = *std::move(made);
    RunCopy(PlanCopy(part.extent, element_bytes, lies, Dense(part.extent)), from.data(),
            dense.mutable_data());
  }
  return CopyBoxToGpu(*item.context, dense, item.into, places, part.extent);
}

absl::Status WeightMember::Land(const Fetching& fetching, const Tensor& answer, Part* part) {
  const Box& box = part->name.box;
  const uint64_t bytes = part->bytes();
  const auto& referral = part->route.referral();
  const absl::Status wrong = absl::DataLossError(absl::StrCat(
      referral.has_value() ? referral->holder.worker : absl::StrCat("owner ", part->route.owner()),
      " sent other bytes of ", box.ToString(), " of tensor \"", Printable(part->item->tensor),
      "\" than the version was sealed with"));
  const bool whole = box == part->source.box;  // Its digest is in the owner's list.
  const uint64_t digest_bytes = whole || referral.has_value() ? 0 : Digest::kBytes;
  if (answer.bytes() < digest_bytes) return wrong;
  const uint64_t sent_bytes = answer.bytes() - digest_bytes;
  const char* data = answer.data_as<char>();
  const absl::string_view digest(data + sent_bytes, digest_bytes);
  const Item& item = *part->item;
  Tensor own;  // The part in memory of this worker's.
  const auto make_own = [&] {
    const auto shape = TensorShape::Make(box.extent);
    if (!shape.ok()) return shape.status();
    auto made = part->expected ? AllocateShared(server_, item.into.dtype(), *shape)
                               : Tensor::Allocate(item.into.dtype(), *shape);
    if (made.ok()) own = *std::move(made);
    return made.status();
  };
  if (part->base != 0 && sent_bytes < bytes) {
    if (const absl::Status made = make_own(); !made.ok()) return made;
    char* const to = static_cast<char*>(own.mutable_data());
    RunCopy(PlanCopy(box.extent, part->element_bytes, PartOf(item.box, item.places, box),
                     Dense(box.extent)),
            item.into.data(), to);
    // The sender may still write where it lies, and what is decoded is to be what was checked.
    const std::string delta(data, sent_bytes);
    if (!DecodeDelta(delta, to, bytes, part->element_bytes, to).ok()) return wrong;
    data = to;
  } else if (sent_bytes != bytes) {
    return wrong;
  } else if (part->expected && make_own().ok()) {
    memcpy(own.mutable_data(), data, bytes);
    data = own.data_as<char>();
  }
  std::optional<Digest> of_owner;  // Unless it is a whole box.
  if (part->rescued != nullptr) {
    // Rescue() has the digest of the box.
    if (part->digest.has_value() && DigestOf(data, bytes) != *part->digest) return wrong;
  } else if (whole) {
    const uint32_t owner = part->route.owner();
    const auto list = ListOf(fetching, owner);
    // It is no fault of whoever sent the part at the owner's word.
    const bool is_late = fetching.patience.left() == absl::ZeroDuration();
    if (!list.ok() && referral.has_value() && !is_late) {
      return absl::NotFoundError(list.status().message());
    }
    if (!list.ok()) return list.status();
    const TensorLayout& layout = fetching.layouts.tensors[part->name.tensor];
    const std::vector<Box> boxes = BoxesOf(layout, owner);
    const size_t place = (*list)->offsets[part->name.tensor] +
                         (std::find(boxes.begin(), boxes.end(), box) - boxes.begin());
    if (BoxDigest(bytes, BlockDigests(data, bytes)) != (*list)->digests[place]) return wrong;
  } else if (referral.has_value()) {
    if (DigestOf(data, bytes) != referral->digest) return wrong;
    of_owner = referral->digest;
  } else {
    const auto sent = DecodeDigests(digest, 1);
    if (!sent.ok() || sent->front() != DigestOf(data, bytes)) return wrong;
    of_owner = sent->front();
  }
  // Whoever has parts for others has their owner's list for them, too.
  if (part->expected && !whole) ListOf(fetching, part->route.owner()).IgnoreError();
  if (part->expected && own.valid()) {
    relay_->Put(part->name, own, of_owner);
    part->expected = false;
  }
  part->came = true;
  // An answer may have its digest behind the bytes.
  const absl::Status put = Put(item, box, own.valid() ? own : answer, Dense(box.extent));
  if (!put.ok()) return put;
  bytes_fetched_.fetch_add(sent_bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

bool WeightMember::TakeHeld(const Part& part) const {
  const Tensor held = relay_ != nullptr ? relay_->Find(part.name) : Tensor();
  if (!held.valid()) return false;
  return Put(*part.item, part.name.box, held, Dense(part.name.box.extent)).ok();
}

absl::Status WeightMember::Fetch(const SealedVersion& version, absl::Span<const Item> items,
                                 const Patience& patience) {
  if (version.lists.size() != owners_.size()) {
    return absl::InvalidArgumentError(
        "the version has another number of owners than this set of weights: fetch one of this set");
  }
  const auto layouts = Layouts(version, patience);
  if (!layouts.ok()) return layouts.status();
  auto parts = Plan(version.name, **layouts, items);
  if (!parts.ok()) return parts.status();
  for (const Item& item : items) {
    if (item.into.on_host()) continue;
    const absl::Status there = AwaitMoment(*item.context, patience);
    if (!there.ok()) return there;
  }
  Prove(version, *layouts);
  std::vector<Part*> left;  // The last one is asked for first.
  for (auto part = parts->rbegin(); part != parts->rend(); ++part) left.push_back(&*part);
  Fetching fetching{version, **layouts, patience};
  absl::Status fetched = FetchParts(&fetching, std::move(left));
  while (fetched.ok() && !fetching.orphans.empty()) {
    fetched = Rescue(&fetching);
    if (fetched.ok() && !fetching.orphans.empty()) fetched = AwaitOwners(&fetching);
  }
  for (const Part& part : *parts) {
    if (part.expected) relay_->GiveUp(part.name);
  }
  Prove(version, *layouts);  // The log may have named the version meanwhile.
  return fetched;
}

// Perhaps an owner was only away for a while, or a member was slow, which is asked again then.
absl::Status WeightMember::AwaitOwners(Fetching* fetching) {
  const Patience& patience = fetching->patience;
  const std::vector<Part*> orphans = std::exchange(fetching->orphans, {});
  Fetching again{fetching->version, fetching->layouts,
                 Patience(std::min(patience.left(), fetching->awaits), patience.cancellation),
                 /*waits=*/true};
  for (Part* const part : orphans) {
    part->route = PartRoute(part->source.owners, 0);
    part->base = BaseOf(*part->item);
  }
  const absl::Status fetched = FetchParts(&again, orphans);
  if (!MayComeBack(again, fetched) || !patience.Check("").ok()) return fetched;
  PauseBriefly(patience);  // Somebody may have answered at once.
  // Perhaps the bytes are on a slow path, and come if they are given more time.
  const auto& owners = again.failed->source.owners;
  if (absl::IsDeadlineExceeded(fetched) &&
      std::any_of(owners.begin(), owners.end(),
                  [&](uint32_t owner) { return calls_.WasFound(owners_[owner]); })) {
    fetching->awaits = std::min(2 * fetching->awaits, kMostAwaits);
  }
  for (Part* const part : orphans) {
    if (!part->came) MakeOrphan(fetching, part);
  }
  return absl::OkStatus();
}

// Whether it is worthwhile to wait for the owners of the part that ended a fetch. One that is there
// and has not opened the set has nothing any more.
bool WeightMember::MayComeBack(const Fetching& fetching, const absl::Status& why) const {
  if (fetching.failed == nullptr || fetching.failed->came) return false;
  if (absl::IsDeadlineExceeded(why)) return true;
  const auto& owners = fetching.failed->source.owners;
  return absl::IsUnavailable(why) && std::any_of(owners.begin(), owners.end(), [&](uint32_t owner) {
           return !calls_.WasThere(owners_[owner]);
         });
}

// Has others know of the version what this member has seen.
void WeightMember::Prove(const SealedVersion& version,
                         const std::shared_ptr<const DeclaredLayouts>& layouts) {
  if (relay_ == nullptr) return;
  relay_->Prove(version, layouts);
  MutexLock lock(&mu_);
  if (lists_of_ != version.root) return;
  for (const auto& [owner, list] : lists_) {
    relay_->ProveList({version.name.number, version.name.birth}, owner, list->digests);
  }
}

// Whether somebody is left to ask for the part.
bool WeightMember::FindWhom(const Fetching& fetching, Part* part) const {
  PartRoute& route = part->route;
  route.Avoid([&](uint32_t owner) { return fetching.failing.count(owner) > 0; });
  for (;;) {
    const auto& referral = route.referral();
    const bool out = part->rescued != nullptr
                         ? fetching.bad_holders.count(referral->holder.worker) > 0
                         : !referral.has_value() && fetching.gone.count(route.owner()) > 0;
    if (!out) return true;
    if (!route.Fail()) return false;
  }
}

void WeightMember::Ask(Fetching* fetching, Part* part, CancellationRef cancellation,
                       const std::shared_ptr<Came>& came) {
  if (relay_ != nullptr && !part->expected && part->route.may_be_sent_on()) {
    part->expected = relay_->Expect(part->name, part->bytes());
  }
  WeightCalls::Call call;
  call.ask.kind = WeightAsk::Kind::kPart;
  call.ask.number = fetching->version.name.number;
  call.ask.birth = fetching->version.name.birth;
  call.ask.tensor = part->name.tensor;
  call.ask.box = part->name.box;
  call.ask.base = part->base;
  const auto& referral = part->route.referral();
  if (referral.has_value()) {
    call.owner = referral->holder.worker;
    call.incarnation = referral->holder.incarnation;
    call.ask.holder = part->expected ? server_->incarnation() : 0;
  } else {
    call.owner = owners_[part->route.owner()];
    part->may_be_sent_on =
        part->route.may_be_sent_on() && fetching->bad_holders.size() < kMostBadHolders;
    call.ask.may_be_sent_on = part->may_be_sent_on;
    call.ask.holder = part->expected ? server_->incarnation() : 0;
    if (!fetching->waits) call.reach = StandIns::kReach;
  }
  if (referral.has_value() || !fetching->waits) {
    Watched& asked =
        fetching->watched.try_emplace(call.owner, fetching->patience.cancellation).first->second;
    asked.incarnation = call.incarnation;
    if (!referral.has_value()) asked.owner = part->route.owner();
    if (asked.out++ == 0) asked.heard_ns = clock_.NowNs();
    cancellation = asked.asks.get();
  }
  const Patience of_try(TimeOfATry(part->route.choices(), fetching->patience.left()), cancellation);
  calls_.Start(call, of_try, [came, part](absl::StatusOr<Tensor> answer) {
    MutexLock lock(&came->mu);
    came->answers.emplace_back(part, std::move(answer));
    came->changed.NotifyAll();
  });
}

absl::Duration WeightMember::PaceOf(uint64_t out) {
  if (options_.bytes_per_second == 0) return absl::ZeroDuration();
  MutexLock lock(&pace_mu_);
  return absl::Nanoseconds(pace_.WaitNs(out, clock_.NowNs()));
}

// Also for what turns out wrong: it has come.
void WeightMember::Charge(const absl::StatusOr<Tensor>& answer) {
  if (options_.bytes_per_second == 0 || !answer.ok()) return;
  MutexLock lock(&pace_mu_);
  pace_.Charge(answer->bytes(), clock_.NowNs());
}

// Gets the parts, of which the last one is asked for first. Those that nobody has become orphans,
// unless owners are waited for.
absl::Status WeightMember::FetchParts(Fetching* fetching, std::vector<Part*> left) {
  const Patience& patience = fetching->patience;
  const auto came = std::make_shared<Came>();
  // Whatever ends this call ends what it has asked for.
  HangingCancellation asks(patience.cancellation);
  const WakesOnCancel wakes(patience, &came->mu, &came->changed);
  size_t out = 0;
  uint64_t out_bytes = 0;
  while (!left.empty() || out > 0) {
    absl::Duration pause;
    // To find out that an owner cannot be reached takes time, and it has other parts.
    while (!left.empty() && out < kAsksAtOnce && !came->SomebodyIsUnreachable()) {
      if (patience.cancelled()) return absl::CancelledError("the fetch was cancelled");
      Part* const part = left.back();
      const bool held = part->rescued == nullptr && TakeHeld(*part);
      if (!held) pause = PaceOf(out_bytes);
      if (pause > absl::ZeroDuration()) break;
      left.pop_back();
      if (held) continue;
      if (!FindWhom(*fetching, part)) {
        MakeOrphan(fetching, part);
        continue;
      }
      ++out;
      out_bytes += part->bytes();
      Ask(fetching, part, asks.get(), came);
    }
    if (out == 0 && left.empty()) break;
    if (out == 0 && patience.left() == absl::ZeroDuration()) {
      fetching->failed = left.back();
      return absl::DeadlineExceededError(
          "the fetch keeps to the bytes_per_second of this member, and the time is over: give it "
          "more time, or the member a higher rate");
    }
    std::pair<Part*, absl::StatusOr<Tensor>> one(nullptr, absl::UnknownError(""));
    {
      absl::Duration waits = absl::Nanoseconds(kSuspectNs);
      if (pause > absl::ZeroDuration()) waits = std::clamp(pause, kLeastPause, waits);
      if (out == 0) waits = std::min(waits, patience.left());
      const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(waits);
      MutexLock lock(&came->mu);
      while (came->answers.empty() && !patience.cancelled() &&
             !came->changed.WaitUntil(&came->mu, until)) {
      }
      if (patience.cancelled()) return absl::CancelledError("the fetch was cancelled");
      if (!came->answers.empty()) {
        one = std::move(came->answers.front());
        came->answers.pop_front();
      }
    }
    WatchAsked(fetching);
    Part* const part = one.first;
    if (part == nullptr) continue;
    --out;
    out_bytes -= part->bytes();
    Charge(one.second);
    const auto again = OnAnswer(fetching, one.second, part);
    if (!again.ok()) {
      fetching->failed = part;
      return again.status();
    }
    if (*again) left.push_back(part);
  }
  return absl::OkStatus();
}

// Whether the part is to be asked for again.
absl::StatusOr<bool> WeightMember::OnAnswer(Fetching* fetching,
                                            const absl::StatusOr<Tensor>& answer, Part* part) {
  PartRoute& route = part->route;
  const auto asked = fetching->watched.find(
      route.referral().has_value() ? route.referral()->holder.worker : owners_[route.owner()]);
  if (asked != fetching->watched.end()) {
    --asked->second.out;
    asked->second.heard_ns = clock_.NowNs();
    asked->second.suspected = 0;
  }
  absl::Status landed = answer.status();
  if (landed.ok() && answer->dtype() == DType::kInt8) {
    landed = SendOn(*fetching, TextOf(*answer), part);
    if (landed.ok()) return true;
  } else if (landed.ok()) {
    landed = Land(*fetching, *answer, part);
  }
  if (landed.ok()) return false;
  if (part->came) return landed;  // Nobody else could put it there either.
  if (part->base != 0 && absl::IsDataLoss(landed)) {
    part->base = 0;  // Perhaps what lies there is not of that version.
    return true;
  }
  const bool of_member = route.referral().has_value();
  if (of_member) {
    if (!absl::IsNotFound(landed)) fetching->bad_holders.insert(route.referral()->holder.worker);
  } else {
    fetching->failing.insert(route.owner());
    if (absl::IsCancelled(landed) && fetching->gone.count(route.owner()) > 0) {
      landed = absl::UnavailableError(
          absl::StrCat(owners_[route.owner()], ", which has weights, does not answer"));
    }
  }
  const uint32_t owner = of_member ? 0 : route.owner();
  const bool more = route.Fail();
  if (!(of_member || AnotherMayHave(landed)) || fetching->patience.left() == absl::ZeroDuration()) {
    return landed;
  }
  if (more) return true;
  if (fetching->waits || !(of_member || IsGone(landed))) return landed;
  // Wrong bytes of one part say nothing of the others.
  if (!of_member && !absl::IsDataLoss(landed)) fetching->gone.insert(owner);
  MakeOrphan(fetching, part);
  return false;
}

void WeightMember::MakeOrphan(Fetching* fetching, Part* part) {
  // Whoever waits for it here would wait for whoever has it after all, which may be himself.
  if (part->expected) relay_->GiveUp(part->name);
  part->expected = false;
  fetching->orphans.push_back(part);
}

// Who waits for a part at another member may wait for what that one waits for, and an owner may be
// gone. Whether they are there at all is asked when they have said nothing for a while.
void WeightMember::WatchAsked(Fetching* fetching) {
  constexpr int kSuspicions = 2;  // An owner is hard to do without.
  for (auto& [worker, asked] : fetching->watched) {
    if (asked.out == 0 || asked.asks.get()->cancelled() ||
        clock_.NowNs() - asked.heard_ns < kSuspectNs * (1 + asked.suspected)) {
      continue;
    }
    const auto heard = server_->calls()->Ping(worker, absl::Nanoseconds(kSuspectNs / 2));
    if (heard.ok() && (asked.owner.has_value() || heard->self.incarnation == asked.incarnation)) {
      asked.heard_ns = clock_.NowNs();
      asked.suspected = 0;
      continue;
    }
    if (asked.owner.has_value()) {
      if (++asked.suspected < kSuspicions) continue;
      fetching->gone.insert(*asked.owner);
    }
    asked.asks.get()->StartCancel();
  }
}

// An owner has named a holder. OK: that one is asked next.
absl::Status WeightMember::SendOn(const Fetching& fetching, absl::string_view text, Part* part) {
  auto referral = DecodeReferral(text);
  if (!referral.ok()) return referral.status();
  const bool whole = part->name.box == part->source.box;
  if (whole == referral->digest.has_value() || part->route.referral().has_value() ||
      !part->may_be_sent_on) {
    return absl::DataLossError(
        "a member was named that has weights, without the digest that they need, by one that is no "
        "owner, or where none was to be: run the same release everywhere");
  }
  const std::string worker = referral->holder.worker;
  notes_->Add(part->name.version, referral->holder, /*of_itself=*/false);
  part->route.SendOn(*std::move(referral));
  if (worker != server_->worker() && fetching.bad_holders.count(worker) == 0) {
    return absl::OkStatus();
  }
  return absl::NotFoundError("the member that was named has failed before");
}

}  // namespace tryst
