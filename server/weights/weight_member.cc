#include "server/weights/weight_member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/printable.h"
#include "weights/boxes.h"
#include "weights/digests.h"

namespace tryst {
namespace {

constexpr size_t kAsksAtOnce = 8;

absl::string_view TextOf(const Tensor& answer) { return {answer.data_as<char>(), answer.bytes()}; }

// Cuts the box along its first dimensions into parts that one answer has room for.
void CutToAnswers(const Box& box, uint32_t element_bytes, std::vector<Box>* parts) {
  const auto longer =
      std::find_if(box.extent.begin(), box.extent.end(), [](int64_t extent) { return extent > 1; });
  if (longer == box.extent.end() ||
      static_cast<uint64_t>(box.elements()) <= kMaxPartBytes / element_bytes) {
    parts->push_back(box);
    return;
  }
  const size_t dim = longer - box.extent.begin();
  Box first = box, second = box;
  first.extent[dim] /= 2;
  second.begin[dim] += first.extent[dim];
  second.extent[dim] -= first.extent[dim];
  CutToAnswers(first, element_bytes, parts);
  CutToAnswers(second, element_bytes, parts);
}

// Whether another owner of the same box may have what this one did not give.
bool AnotherMayHave(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsNotFound(status) ||
         absl::IsDataLoss(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

struct WeightMember::Part {
  const Item* item = nullptr;
  uint32_t tensor = 0;
  uint32_t element_bytes = 0;
  Source source;          // Its part is this part.
  size_t next_owner = 0;  // The one that is asked, among the source's owners.
  size_t failed = 0;
};

absl::StatusOr<std::unique_ptr<WeightMember>> WeightMember::Open(Server* server,
                                                                 const std::string& set,
                                                                 std::vector<std::string> owners) {
  const absl::Status named = CheckSetName(set);
  if (!named.ok()) return named;
  if (owners.empty() || owners.size() > LayoutLimits::kMaxOwners) {
    return absl::InvalidArgumentError(absl::StrCat("a set of weights has 1 to ",
                                                   LayoutLimits::kMaxOwners, " owners, and ",
                                                   owners.size(), " were given"));
  }
  if (std::find(owners.begin(), owners.end(), server->worker()) != owners.end()) {
    return absl::InvalidArgumentError(absl::StrCat(server->worker(),
                                                   " is an owner of the set of weights ", set,
                                                   ", and an owner fetches none of its own set"));
  }
  return std::unique_ptr<WeightMember>(new WeightMember(server, set, std::move(owners)));
}

absl::StatusOr<SealedVersion> WeightMember::Newer(uint64_t number, absl::Duration timeout) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kNewer;
  ask.number = number;
  const WeightCalls::Call call{owners_[0], ask};
  const auto answer = std::move(calls_.Ask({call}, timeout)[0]);
  if (!answer.ok()) return answer.status();
  auto version = DecodeSealed(TextOf(*answer));
  if (!version.ok()) return version;
  if (version->lists.size() != owners_.size() || version->name.number <= number) {
    return absl::DataLossError(
        absl::StrCat(owners_[0], " answered with version ", version->name.number, " of ",
                     version->lists.size(), " owners, but was asked for one above ", number, " of ",
                     owners_.size(), " owners: do all name the same owners?"));
  }
  return version;
}

absl::StatusOr<std::shared_ptr<const DeclaredLayouts>> WeightMember::Layouts(
    const SealedVersion& version, absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    if (layouts_ != nullptr && layouts_digest_ == version.name.layouts) return layouts_;
  }
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kLayouts;
  ask.digest = version.name.layouts.ToString();
  const WeightCalls::Call call{owners_[0], ask};
  const auto answer = std::move(calls_.Ask({call}, timeout)[0]);
  if (!answer.ok()) return answer.status();
  if (DigestOf(TextOf(*answer)) != version.name.layouts) {
    return absl::DataLossError(absl::StrCat(owners_[0],
                                            " sent other layouts of tensors than version ",
                                            version.name.number, " was sealed with"));
  }
  auto declared = DecodeLayouts(TextOf(*answer));
  if (!declared.ok()) return declared.status();
  if (declared->owners != owners_.size()) {
    return absl::DataLossError(absl::StrCat("the layouts of ", owners_[0], " name ",
                                            declared->owners,
                                            " owners, and this member was opened with ",
                                            owners_.size(), ": name the same owners everywhere"));
  }
  auto layouts = std::make_shared<const DeclaredLayouts>(*std::move(declared));
  MutexLock lock(&mu_);
  layouts_digest_ = version.name.layouts;
  layouts_ = layouts;
  return layouts;
}

absl::StatusOr<std::shared_ptr<const WeightMember::OwnersList>> WeightMember::ListOf(
    const SealedVersion& version, const DeclaredLayouts& layouts, uint32_t owner,
    absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    const auto found = lists_.find(owner);
    if (lists_of_ == version.root && found != lists_.end()) return found->second;
  }
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kList;
  ask.number = version.name.number;
  ask.birth = version.name.birth;
  const WeightCalls::Call call{owners_[owner], ask};
  const auto answer = std::move(calls_.Ask({call}, timeout)[0]);
  if (!answer.ok()) return answer.status();
  auto list = std::make_shared<OwnersList>();
  list->offsets = ListOffsets(layouts.tensors, owner);
  auto digests = DecodeDigests(TextOf(*answer), list->offsets.back());
  if (!digests.ok() || ListDigest(version.name, owner, *digests) != version.lists[owner]) {
    return absl::DataLossError(absl::StrCat("owner ", owner,
                                            " sent other digests of its boxes than version ",
                                            version.name.number, " was sealed with"));
  }
  list->digests = *std::move(digests);
  MutexLock lock(&mu_);
  if (lists_of_ != version.root) lists_.clear();
  lists_of_ = version.root;
  lists_[owner] = list;
  return std::shared_ptr<const OwnersList>(std::move(list));
}

absl::StatusOr<std::vector<WeightMember::Part>> WeightMember::Plan(
    const DeclaredLayouts& layouts, absl::Span<const Item> items) const {
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
    if (!item.into.valid() || item.into.dtype() != layout.dtype || !item.into.on_host() ||
        item.into.read_only()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", Printable(item.tensor), "\" needs a destination of type ",
                       DTypeName(layout.dtype),
                       " in host memory that may be written, and was given one of type ",
                       DTypeName(item.into.dtype())));
    }
    auto sources = SourcesOf(layout, owners_.size(), item.box);
    if (!sources.ok()) return sources.status();
    const absl::Status view = CheckView(item.box.extent, item.places, item.into.shape().elements(),
                                        ViewUse::kDestination);
    if (!view.ok()) return view;
    for (const Source& source : *sources) {
      std::vector<Box> boxes;
      CutToAnswers(source.part, DTypeBytes(layout.dtype), &boxes);
      for (Box& box : boxes) {
        Part part{&item, number->second, DTypeBytes(layout.dtype), source, 0, 0};
        part.source.part = std::move(box);
        part.next_owner = parts.size() % source.owners.size();  // All replicas have their share.
        parts.push_back(std::move(part));
      }
    }
  }
  return parts;
}

absl::Status WeightMember::Land(const SealedVersion& version, const DeclaredLayouts& layouts,
                                const Part& part, uint32_t owner, const Tensor& answer,
                                absl::Duration timeout) {
  const Box& box = part.source.part;
  const uint64_t bytes = static_cast<uint64_t>(box.elements()) * part.element_bytes;
  const absl::Status wrong = absl::DataLossError(absl::StrCat(
      "owner ", owner, " sent other bytes for ", box.ToString(), " of tensor \"",
      Printable(part.item->tensor), "\" than version ", version.name.number, " was sealed with"));
  if (answer.bytes() != bytes + Digest::kBytes) return wrong;
  const char* const data = answer.data_as<char>();
  if (box == part.source.box) {
    const auto list = ListOf(version, layouts, owner, timeout);
    if (!list.ok()) return list.status();
    const TensorLayout& layout = layouts.tensors[part.tensor];
    const std::vector<Box> boxes = BoxesOf(layout, owner);
    const size_t place = (*list)->offsets[part.tensor] +
                         (std::find(boxes.begin(), boxes.end(), box) - boxes.begin());
    if (BoxDigest(bytes, BlockDigests(data, bytes)) != (*list)->digests[place]) return wrong;
  } else {
    const auto sent = DecodeDigests({data + bytes, Digest::kBytes}, 1);
    if (!sent.ok() || sent->front() != DigestOf(data, bytes)) return wrong;
  }
  const Item& item = *part.item;
  RunCopy(PlanCopy(box.extent, part.element_bytes, Dense(box.extent),
                   PartOf(item.box, item.places, box)),
          data, item.into.mutable_data());
  return absl::OkStatus();
}

absl::Status WeightMember::Fetch(const SealedVersion& version, absl::Span<const Item> items,
                                 absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  if (version.lists.size() != owners_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the version has ", version.lists.size(), " owners, and this set of weights has ",
        owners_.size(), ": fetch a version of this set"));
  }
  const auto layouts = Layouts(version, timeout);
  if (!layouts.ok()) return layouts.status();
  auto parts = Plan(**layouts, items);
  if (!parts.ok()) return parts.status();
  std::vector<Part*> left;  // The last one is asked for first.
  for (auto part = parts->rbegin(); part != parts->rend(); ++part) left.push_back(&*part);
  while (!left.empty()) {
    const size_t count = std::min(left.size(), kAsksAtOnce);
    const std::vector<Part*> asked(left.end() - count, left.end());
    left.resize(left.size() - count);
    std::vector<WeightCalls::Call> calls;
    for (const Part* part : asked) {
      WeightAsk ask;
      ask.kind = WeightAsk::Kind::kPart;
      ask.number = version.name.number;
      ask.birth = version.name.birth;
      ask.tensor = part->tensor;
      ask.box = part->source.part;
      calls.push_back({owners_[part->source.owners[part->next_owner]], ask});
    }
    const auto answers = calls_.Ask(calls, until - absl::Now());
    for (size_t i = 0; i < count; ++i) {
      Part* const part = asked[i];
      const uint32_t owner = part->source.owners[part->next_owner];
      const absl::Status landed =
          answers[i].ok() ? Land(version, **layouts, *part, owner, *answers[i], until - absl::Now())
                          : answers[i].status();
      if (landed.ok()) continue;
      if (!AnotherMayHave(landed) || ++part->failed == part->source.owners.size() ||
          absl::Now() >= until) {
        return landed;
      }
      part->next_owner = (part->next_owner + 1) % part->source.owners.size();
      left.push_back(part);
    }
  }
  return absl::OkStatus();
}

}  // namespace tryst
