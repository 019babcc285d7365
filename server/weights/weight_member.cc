#include "server/weights/weight_member.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "weights/stage_table.h"

namespace tryst {

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
      notes_(std::make_shared<HolderNotes>()),
      stand_ins_({&calls_, LeaderLink::LeadersOf(options.owners), options.owners, server->worker(),
                  incarnation_, notes_}),
      permit_(options.keeps_knowingly),
      group_(incarnation_, options.times, this, &permit_),
      pace_(options.bytes_per_second) {
  if (!options.observes) {
    if (options.hold_bytes > 0) {
      relay_ = std::make_shared<WeightRelay>(server, options.set, options.hold_bytes, notes_);
      relay_->Open();
    }
    LeaderLink::Parts link;
    link.server = server;
    link.set = options.set;
    link.leaders = LeaderLink::LeadersOf(options.owners);
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
  WeightVersion active, kept;
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
    if (active.number != 0) last_active_ = state.active;
    kept = last_active_.version;
    if (active.number != active_) {
      active_ = active.number;
      active_ns_ = now_ns;
      changed_.NotifyAll();
    }
    questions->swap(questions_);
    questions_.clear();
  }
  if (relay_ != nullptr) relay_->Allow(active, open);
  notes_->KeepOnly([&](const WeightVersion& version) {
    return version == kept || std::find(open.begin(), open.end(), version) != open.end();
  });
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

void WeightMember::Ask(const Question& question) {
  questions_.push_back(question);
  if (relay_ == nullptr) return;
  questions_.back().holder = server_->incarnation();
  questions_.back().held = relay_->Held();
}

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
    // Who has not heard of this stage speaks of one before it, whose bytes may be gone.
    const bool heard = std::none_of(events_.begin(), events_.end(), [&](const WeightEvent& event) {
      return event.kind == WeightEvent::Kind::kPrepare && event.number == number;
    });
    if (!heard) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", number, " is to be staged again: take the event first"));
    }
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

}  // namespace tryst
