#include "server/weights/weight_member.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/printable.h"
#include "server/members/peer_calls.h"
#include "weights/boxes.h"
#include "weights/chain.h"
#include "weights/delta.h"
#include "weights/digests.h"
#include "weights/route.h"
#include "weights/stage_table.h"

namespace tryst {
namespace {

constexpr size_t kAsksAtOnce = 8;
constexpr int64_t kSuspectNs = 1'000'000'000;
// After so many members that have failed, in one fetch, the owners are asked for all the rest.
constexpr size_t kMostBadHolders = 3;

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
         absl::IsDataLoss(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

// How long one of several owners of the same box is waited for, before another one is asked.
absl::Duration TimeOfATry(size_t owners, absl::Duration left) {
  constexpr absl::Duration kLeast = absl::Seconds(2), kMost = absl::Seconds(30);
  if (owners == 1) return left;
  return std::min(left, std::clamp(left / static_cast<double>(owners + 1), kLeast, kMost));
}

}  // namespace

struct WeightMember::Part {
  const Item* item = nullptr;
  PartName name;
  uint32_t element_bytes = 0;
  Source source;  // Its part is this part.
  PartRoute route;
  uint64_t base = 0;      // Item::has, until that has turned out wrong.
  bool expected = false;  // By the relay, for others.
  uint64_t bytes() const { return static_cast<uint64_t>(name.box.elements()) * element_bytes; }
};

// A member that is asked in the place of owners, in one fetch.
struct WeightMember::Watched {
  uint64_t incarnation = 0;
  size_t out = 0;        // So many asks have no answer yet.
  int64_t heard_ns = 0;  // When it gave a sign of life.
  Cancellation asks;
};

struct WeightMember::Fetching {
  const SealedVersion& version;
  const DeclaredLayouts& layouts;
  const Patience& patience;
  std::set<uint32_t> failing;         // Owners that are asked last.
  std::set<std::string> bad_holders;  // That are not asked again.
  std::map<std::string, Watched> holders = {};
};

// Answers to the parts of one fetch. They may come when it has ended.
struct WeightMember::Came {
  Mutex mu;
  CondVar changed;
  std::deque<std::pair<Part*, absl::StatusOr<Tensor>>> answers ABSL_GUARDED_BY(mu);
};

const char* WeightEventName(WeightEvent::Kind kind) {
  constexpr const char* kNames[] = {"sealed", "prepare", "hold", "active", "dropped", "headless"};
  static_assert(std::size(kNames) == static_cast<size_t>(WeightEvent::Kind::kHeadless) + 1,
                "one is missing");
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<std::unique_ptr<WeightMember>> WeightMember::Open(
    Server* server, const WeightMemberOptions& options) {
  const absl::Status named = CheckSetName(options.set);
  if (!named.ok()) return named;
  const std::vector<std::string>& owners = options.owners;
  if (owners.empty() || owners.size() > LayoutLimits::kMaxOwners) {
    return absl::InvalidArgumentError(
        absl::StrCat(owners.size(), " owners were named, and a set of weights has 1 to ",
                     LayoutLimits::kMaxOwners));
  }
  if (std::find(owners.begin(), owners.end(), server->worker()) != owners.end()) {
    return absl::InvalidArgumentError(absl::StrCat(server->worker(), " is an owner of the set ",
                                                   options.set,
                                                   ", and an owner cannot be a member of it, too"));
  }
  if (options.hold_bytes > 0 && server->steps() == nullptr) {
    return absl::FailedPreconditionError("start the server before it opens a set of weights");
  }
  return std::unique_ptr<WeightMember>(new WeightMember(server, options));
}

WeightMember::WeightMember(Server* server, const WeightMemberOptions& options)
    : options_(options),
      server_(server),
      incarnation_(absl::Uniform<uint64_t>(absl::BitGen()) | 1),
      calls_(server, options.set),
      permit_(options.keeps_knowingly),
      group_(incarnation_, options.times, this, &permit_) {
  if (!options.observes) {
    if (options.hold_bytes > 0) {
      relay_ = std::make_shared<WeightRelay>(server, options.set, options.hold_bytes);
      relay_->Open();
    }
    LeaderLink::Parts link;
    link.server = server;
    link.set = options.set;
    link.leader = options.owners[0];
    link.incarnation = incarnation_;
    link.patience_ns = options.times.permit_ns;
    link.turn = [this](const LeaderLink::Heard& heard, std::vector<Question>* questions) {
      return Turn(heard, questions);
    };
    link_ = std::make_unique<LeaderLink>(std::move(link));
  }
  shown_ = server->weight_views()->Show([this] { return View(); });
}

WeightMember::~WeightMember() {
  shown_.reset();
  link_.reset();
  if (relay_ != nullptr) relay_->Close();
  MutexLock lock(&group_mu_);
  permit_.End();
}

// ---- The group ----

int64_t WeightMember::Turn(const LeaderLink::Heard& heard, std::vector<Question>* questions) {
  WeightVersion active;
  std::vector<WeightVersion> open;
  int64_t next_ns = 0;
  {
    MutexLock lock(&group_mu_);
    const int64_t now_ns = clock_.NowNs();
    for (const Answer& answer : heard.answers) group_.OnAnswer(answer, now_ns);
    if (heard.ask_soon) group_.AskSoon();
    next_ns = group_.Advance(now_ns);
    TellNews(now_ns);
    const LogState& state = group_.state();
    active = state.active.version;
    for (const LogEntry& entry : state.open) open.push_back(entry.version);
    if (active.number != active_) {
      active_ = active.number;
      active_ns_ = now_ns;
      changed_.NotifyAll();
    }
    questions->swap(questions_);
    questions_.clear();
  }
  if (relay_ != nullptr) relay_->Allow(active, open);
  return next_ns;
}

void WeightMember::TellNews(int64_t now_ns) {
  const LogState& state = group_.state();
  const uint64_t newest =
      state.open.empty() ? state.active.version.number : state.open.back().version.number;
  if (newest > newest_) {
    newest_ = newest;
    Push(WeightEvent::Kind::kSealed, newest);
  }
  const int64_t until_ns = permit_.until_ns();
  if (until_ns != 0 && now_ns >= until_ns && until_ns != headless_ns_) {
    headless_ns_ = until_ns;
    ++permits_lost_;
    Push(WeightEvent::Kind::kHeadless, group_.serving().number);
  }
}

void WeightMember::Push(WeightEvent::Kind kind, uint64_t number) {
  // What nobody has taken and a later one says as well goes.
  events_.erase(std::remove_if(events_.begin(), events_.end(),
                               [kind](const WeightEvent& event) { return event.kind == kind; }),
                events_.end());
  // A version is sealed before it is anything else, although one answer may tell of both.
  auto at = events_.end();
  if (kind == WeightEvent::Kind::kSealed) {
    at = std::find_if(events_.begin(), events_.end(),
                      [number](const WeightEvent& event) { return event.number >= number; });
  }
  events_.insert(at, {kind, number});
  changed_.NotifyAll();
}

void WeightMember::Ask(const Question& question) { questions_.push_back(question); }

void WeightMember::Stage(const LogEntry& version) {
  Push(WeightEvent::Kind::kPrepare, version.version.number);
}

void WeightMember::Hold(const WeightVersion& version) {
  Push(WeightEvent::Kind::kHold, version.number);
}

void WeightMember::Switch(const WeightVersion& version) {
  Push(WeightEvent::Kind::kActive, version.number);
}

void WeightMember::Drop(const WeightVersion& version) {
  // Who has not heard that it is wanted need not hear that it is not.
  const auto prepare = std::find_if(events_.begin(), events_.end(), [&](const WeightEvent& event) {
    return event.kind == WeightEvent::Kind::kPrepare && event.number == version.number;
  });
  if (prepare != events_.end()) {
    events_.erase(prepare);
    return;
  }
  Push(WeightEvent::Kind::kDropped, version.number);
}

absl::Status WeightMember::Observes() const {
  if (link_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this worker observes the set ", options_.set,
                   ", so it serves no version of it: open the set with role=member to serve"));
}

absl::StatusOr<WeightEvent> WeightMember::NextEvent(const Patience& patience) {
  if (const absl::Status observes = Observes(); !observes.ok()) return observes;
  const WakesOnCancel wakes(patience, &group_mu_, &changed_);
  MutexLock lock(&group_mu_);
  while (events_.empty()) {
    const absl::Status over = patience.Check("waiting for an event");
    if (!over.ok()) return over;
    changed_.WaitUntil(&group_mu_, patience.WakeAt());
  }
  const WeightEvent event = events_.front();
  events_.pop_front();
  return event;
}

absl::StatusOr<WeightVersion> WeightMember::StageOf(uint64_t number) const {
  const WeightVersion& stage = group_.stage();
  if (stage.number == number && number != 0) return stage;
  return absl::FailedPreconditionError(
      stage.number == 0 ? absl::StrCat("version ", number, " is not being staged: no version is")
                        : absl::StrCat("version ", number, " is not being staged: version ",
                                       stage.number, " is"));
}

absl::Status WeightMember::Vote(uint64_t number, const absl::Status& staged) {
  if (const absl::Status observes = Observes(); !observes.ok()) return observes;
  {
    MutexLock lock(&group_mu_);
    const auto stage = StageOf(number);
    if (!stage.ok()) return stage.status();
    group_.Staged(*stage, staged.ok(), clock_.NowNs());
  }
  link_->Wake();
  return absl::OkStatus();
}

absl::Status WeightMember::Held(uint64_t number) {
  if (const absl::Status observes = Observes(); !observes.ok()) return observes;
  {
    MutexLock lock(&group_mu_);
    const auto stage = StageOf(number);
    if (!stage.ok()) return stage.status();
    group_.Quiet(*stage, clock_.NowNs());
  }
  link_->Wake();
  return absl::OkStatus();
}

absl::Status WeightMember::Switched(uint64_t number) {
  if (const absl::Status observes = Observes(); !observes.ok()) return observes;
  {
    MutexLock lock(&group_mu_);
    const auto stage = StageOf(number);
    if (!stage.ok()) return stage.status();
    group_.Switched(*stage, clock_.NowNs());
  }
  link_->Wake();
  return absl::OkStatus();
}

std::string WeightMember::Explain() const {
  std::string text = absl::StrCat("set ", options_.set, ": ");
  if (link_ == nullptr) return absl::StrCat(text, "observes");
  {
    MutexLock lock(&group_mu_);
    const LogState& state = group_.state();
    absl::StrAppend(&text, state.HasMember(incarnation_) ? "member of " : "not a member yet of ",
                    state.members.size(), "; version ", state.active.version.number, " is active, ",
                    group_.serving().number, " is served here");
    if (group_.stage().number != 0) {
      absl::StrAppend(&text, "; version ", group_.stage().number, " ",
                      StageStateName(group_.stage_state()));
    }
  }
  const int64_t until_ns = permit_.until_ns();
  absl::StrAppend(&text, until_ns == 0               ? "; no permit"
                         : clock_.NowNs() < until_ns ? "; has a permit"
                                                     : "; the permit has run out");
  const std::string note = link_->Note();
  return note.empty() ? text : absl::StrCat(text, "; ", note);
}

WeightView WeightMember::View() const {
  WeightView view;
  view.set = options_.set;
  view.role = link_ == nullptr ? "observer" : "member";
  view.incarnation = incarnation_;
  view.bytes = bytes_fetched_.load(std::memory_order_relaxed);
  if (relay_ != nullptr) {
    view.held_bytes = relay_->bytes_held();
    view.sent_on = relay_->bytes_sent();
  }
  if (link_ == nullptr) return view;
  const Serving serving = permit_.Serve(clock_);
  view.serves = serving.number;
  view.confirmed = serving.confirmed;
  view.note = link_->Note();
  MutexLock lock(&group_mu_);
  view.newest = newest_;
  view.active = active_;
  if (active_ != 0) view.active_s = static_cast<double>(clock_.NowNs() - active_ns_) / 1e9;
  view.permits_lost = permits_lost_;
  if (!view.note.empty()) return view;
  if (!group_.state().HasMember(incarnation_)) {
    view.note = "not a member yet";
  } else if (group_.stage().number != 0) {
    view.note =
        absl::StrCat("version ", group_.stage().number, " ", StageStateName(group_.stage_state()));
  }
  return view;
}

absl::Status WeightMember::Stage(uint64_t number, absl::Span<const Item> items,
                                 const Patience& patience) {
  if (const absl::Status observes = Observes(); !observes.ok()) return observes;
  LogEntry entry;
  {
    MutexLock lock(&group_mu_);
    const auto stage = StageOf(number);
    if (!stage.ok()) return stage.status();
    const LogState& state = group_.state();
    const LogEntry* const open = state.FindOpen(number);
    entry = open != nullptr ? *open : state.active;
    if (entry.version != *stage) {
      return absl::AbortedError(absl::StrCat(
          "version ", number, " is no longer wanted: it was dropped or replaced meanwhile"));
    }
  }
  const auto version = Find(number, patience);
  if (!version.ok()) return version.status();
  if (version->name.birth != entry.version.birth || RootOf(version->root) != entry.root) {
    return absl::DataLossError(absl::StrCat("the owners have another version ", number,
                                            " than the one that the set's log has sealed"));
  }
  return Fetch(*version, items, patience);
}

absl::StatusOr<SealedVersion> WeightMember::Active(const Patience& patience) {
  if (const absl::Status observes = Observes(); !observes.ok()) return observes;
  uint64_t number = 0;
  {
    const WakesOnCancel wakes(patience, &group_mu_, &changed_);
    MutexLock lock(&group_mu_);
    while ((number = group_.state().active.version.number) == 0) {
      const absl::Status over = patience.Check("waiting for a version to be active");
      if (!over.ok()) return over;
      changed_.WaitUntil(&group_mu_, patience.WakeAt());
    }
  }
  return Find(number, patience);
}

// ---- The data ----

absl::StatusOr<SealedVersion> WeightMember::Find(uint64_t number, const Patience& patience) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kVersion;
  ask.number = number;
  const WeightCalls::Call call{owners_[0], ask};
  const auto answer = std::move(calls_.Ask({call}, patience)[0]);
  if (!answer.ok()) return answer.status();
  auto version = DecodeSealed(TextOf(*answer));
  if (!version.ok()) return version;
  if (version->lists.size() != owners_.size() || version->name.number != number) {
    return absl::DataLossError(absl::StrCat(owners_[0], " was asked for version ", number,
                                            " and answered with another one"));
  }
  return version;
}

absl::StatusOr<SealedVersion> WeightMember::Newer(uint64_t number, const Patience& patience) {
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kNewer;
  ask.number = number;
  const WeightCalls::Call call{owners_[0], ask};
  const auto answer = std::move(calls_.Ask({call}, patience)[0]);
  if (!answer.ok()) return answer.status();
  auto version = DecodeSealed(TextOf(*answer));
  if (!version.ok()) return version;
  if (version->lists.size() != owners_.size() || version->name.number <= number) {
    return absl::DataLossError(
        absl::StrCat(owners_[0], " was asked for a version above ", number, " of ", owners_.size(),
                     " owners, and answered with version ", version->name.number, " of ",
                     version->lists.size(), " owners"));
  }
  return version;
}

absl::StatusOr<std::shared_ptr<const DeclaredLayouts>> WeightMember::Layouts(
    const SealedVersion& version, const Patience& patience) {
  {
    MutexLock lock(&mu_);
    if (layouts_ != nullptr && layouts_digest_ == version.name.layouts) return layouts_;
  }
  WeightAsk ask;
  ask.kind = WeightAsk::Kind::kLayouts;
  ask.digest = version.name.layouts.ToString();
  const WeightCalls::Call call{owners_[0], ask};
  const auto answer = std::move(calls_.Ask({call}, patience)[0]);
  if (!answer.ok()) return answer.status();
  if (DigestOf(TextOf(*answer)) != version.name.layouts) {
    return absl::DataLossError(
        "the first owner sent other layouts of tensors than the version was sealed with");
  }
  auto declared = DecodeLayouts(TextOf(*answer));
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
    const SealedVersion& version, const DeclaredLayouts& layouts, uint32_t owner,
    const Patience& patience) {
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
  const auto answer = std::move(calls_.Ask({call}, patience)[0]);
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
    if (!item.into.valid() || item.into.dtype() != layout.dtype || !item.into.on_host() ||
        item.into.read_only()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", Printable(item.tensor), "\" can be fetched only into host memory of type ",
          DTypeName(layout.dtype), " that may be written, and was to go into memory of type ",
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
        // All replicas have their share.
        Part part{&item,
                  {{version.number, version.birth}, number->second, std::move(box)},
                  DTypeBytes(layout.dtype),
                  source,
                  PartRoute(source.owners, parts.size()),
                  item.has};
        parts.push_back(std::move(part));
      }
    }
  }
  return parts;
}

absl::Status WeightMember::Land(const Fetching& fetching, const Tensor& answer, Part* part) {
  const Box& box = part->name.box;
  const uint64_t bytes = part->bytes();
  const uint32_t owner = part->route.owner();
  const auto& referral = part->route.referral();
  const absl::Status wrong = absl::DataLossError(
      absl::StrCat(referral.has_value() ? referral->holder.worker : absl::StrCat("owner ", owner),
                   " sent other bytes of ", box.ToString(), " of tensor \"",
                   Printable(part->item->tensor), "\" than the version was sealed with"));
  const bool whole = box == part->source.box;  // Its digest is in the owner's list.
  const uint64_t digest_bytes = whole || referral.has_value() ? 0 : Digest::kBytes;
  if (answer.bytes() < digest_bytes) return wrong;
  const uint64_t sent_bytes = answer.bytes() - digest_bytes;
  const char* data = answer.data_as<char>();
  const absl::string_view digest(data + sent_bytes, digest_bytes);
  const Item& item = *part->item;
  const Strides places = PartOf(item.box, item.places, box);
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
    RunCopy(PlanCopy(box.extent, part->element_bytes, places, Dense(box.extent)), item.into.data(),
            to);
    if (!DecodeDelta({data, sent_bytes}, to, bytes, part->element_bytes, to).ok()) return wrong;
    data = to;
  } else if (sent_bytes != bytes) {
    return wrong;
  }
  if (whole) {
    const auto list = ListOf(fetching.version, fetching.layouts, owner, fetching.patience);
    if (!list.ok()) return list.status();
    const TensorLayout& layout = fetching.layouts.tensors[part->name.tensor];
    const std::vector<Box> boxes = BoxesOf(layout, owner);
    const size_t place = (*list)->offsets[part->name.tensor] +
                         (std::find(boxes.begin(), boxes.end(), box) - boxes.begin());
    if (BoxDigest(bytes, BlockDigests(data, bytes)) != (*list)->digests[place]) return wrong;
  } else if (referral.has_value()) {
    if (DigestOf(data, bytes) != referral->digest) return wrong;
  } else {
    const auto sent = DecodeDigests(digest, 1);
    if (!sent.ok() || sent->front() != DigestOf(data, bytes)) return wrong;
  }
  if (part->expected && !own.valid() && make_own().ok()) memcpy(own.mutable_data(), data, bytes);
  if (part->expected && own.valid()) {
    relay_->Put(part->name, own);
    part->expected = false;
  }
  RunCopy(PlanCopy(box.extent, part->element_bytes, Dense(box.extent), places), data,
          item.into.mutable_data());
  bytes_fetched_.fetch_add(sent_bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

bool WeightMember::TakeHeld(const Part& part) const {
  const Tensor held = relay_ != nullptr ? relay_->Find(part.name) : Tensor();
  if (!held.valid()) return false;
  const Item& item = *part.item;
  RunCopy(PlanCopy(part.name.box.extent, part.element_bytes, Dense(part.name.box.extent),
                   PartOf(item.box, item.places, part.name.box)),
          held.data(), item.into.mutable_data());
  return true;
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
  Fetching fetching{version, **layouts, patience, {}, {}};
  const absl::Status fetched = FetchParts(&fetching, &*parts);
  for (const Part& part : *parts) {
    if (part.expected) relay_->GiveUp(part.name);
  }
  return fetched;
}

void WeightMember::Ask(Fetching* fetching, Part* part, CancellationRef cancellation,
                       const std::shared_ptr<Came>& came) {
  if (relay_ != nullptr && !part->expected && part->route.may_be_sent_on()) {
    part->expected = relay_->Expect(part->name, part->bytes());
  }
  part->route.Avoid([&](uint32_t owner) { return fetching->failing.count(owner) > 0; });
  WeightCalls::Call call;
  call.ask.kind = WeightAsk::Kind::kPart;
  call.ask.number = fetching->version.name.number;
  call.ask.birth = fetching->version.name.birth;
  call.ask.tensor = part->name.tensor;
  call.ask.box = part->name.box;
  call.ask.base = part->base;
  if (const auto& referral = part->route.referral(); referral.has_value()) {
    call.owner = referral->holder.worker;
    call.incarnation = referral->holder.incarnation;
    Watched& holder = fetching->holders[call.owner];
    holder.incarnation = call.incarnation;
    if (holder.out++ == 0) holder.heard_ns = clock_.NowNs();
    cancellation = &holder.asks;
  } else {
    call.owner = owners_[part->route.owner()];
    call.ask.may_be_sent_on =
        part->route.may_be_sent_on() && fetching->bad_holders.size() < kMostBadHolders;
    call.ask.holder = part->expected ? server_->incarnation() : 0;
  }
  const Patience of_try(TimeOfATry(part->route.choices(), fetching->patience.left()), cancellation);
  calls_.Start(call, of_try, [came, part](absl::StatusOr<Tensor> answer) {
    MutexLock lock(&came->mu);
    came->answers.emplace_back(part, std::move(answer));
    came->changed.NotifyAll();
  });
}

absl::Status WeightMember::FetchParts(Fetching* fetching, std::vector<Part>* parts) {
  const Patience& patience = fetching->patience;
  std::vector<Part*> left;  // The last one is asked for first.
  for (auto part = parts->rbegin(); part != parts->rend(); ++part) left.push_back(&*part);
  const auto came = std::make_shared<Came>();
  Cancellation asks;  // Whatever ends this call ends what it has asked for.
  const WakesOnCancel wakes(patience, &came->mu, &came->changed);
  size_t out = 0;
  while (!left.empty() || out > 0) {
    while (!left.empty() && out < kAsksAtOnce) {
      Part* const part = left.back();
      left.pop_back();
      if (TakeHeld(*part)) continue;
      ++out;
      Ask(fetching, part, &asks, came);
    }
    if (out == 0) break;
    std::pair<Part*, absl::StatusOr<Tensor>> one(nullptr, absl::UnknownError(""));
    {
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kSuspectNs);
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
    WatchHolders(fetching);
    Part* const part = one.first;
    if (part == nullptr) continue;
    --out;
    if (const auto& referral = part->route.referral(); referral.has_value()) {
      Watched& holder = fetching->holders[referral->holder.worker];
      --holder.out;
      holder.heard_ns = clock_.NowNs();
    }
    absl::Status landed = one.second.status();
    if (landed.ok() && one.second->dtype() == DType::kInt8) {
      landed = SendOn(*fetching, TextOf(*one.second), part);
      if (landed.ok()) {
        left.push_back(part);
        continue;
      }
    } else if (landed.ok()) {
      landed = Land(*fetching, *one.second, part);
    }
    if (landed.ok()) continue;
    if (part->base != 0 && absl::IsDataLoss(landed)) {
      part->base = 0;  // Perhaps what lies there is not of that version.
      left.push_back(part);
      continue;
    }
    const auto& referral = part->route.referral();
    if (referral.has_value()) {
      if (!absl::IsNotFound(landed)) fetching->bad_holders.insert(referral->holder.worker);
    } else {
      fetching->failing.insert(part->route.owner());
    }
    const bool another = referral.has_value() || AnotherMayHave(landed);
    if (!part->route.Fail() || !another || patience.left() == absl::ZeroDuration()) return landed;
    left.push_back(part);
  }
  return absl::OkStatus();
}

// Who waits for a part at another member may wait for what that one waits for. Whether it is there
// at all is asked when it has said nothing for a while.
void WeightMember::WatchHolders(Fetching* fetching) {
  for (auto& [worker, holder] : fetching->holders) {
    if (holder.out == 0 || clock_.NowNs() - holder.heard_ns < kSuspectNs) continue;
    const auto heard = server_->calls()->Ping(worker, absl::Nanoseconds(kSuspectNs / 2));
    if (heard.ok() && heard->self.incarnation == holder.incarnation) {
      holder.heard_ns = clock_.NowNs();
    } else {
      holder.asks.StartCancel();
    }
  }
}

// An owner has named a holder. OK: that one is asked next.
absl::Status WeightMember::SendOn(const Fetching& fetching, absl::string_view text, Part* part) {
  auto referral = DecodeReferral(text);
  if (!referral.ok()) return referral.status();
  const bool whole = part->name.box == part->source.box;
  if (whole == referral->digest.has_value() || part->route.referral().has_value()) {
    return absl::DataLossError(
        "a member was named that has weights, without the digest that they need, or by one that is "
        "no owner: run the same release everywhere");
  }
  const std::string worker = referral->holder.worker;
  part->route.SendOn(*std::move(referral));
  if (worker != server_->worker() && fetching.bad_holders.count(worker) == 0) {
    return absl::OkStatus();
  }
  return absl::NotFoundError("the member that was named has failed before");
}

}  // namespace tryst
