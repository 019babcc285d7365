#include "server/weights/owner_group.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace tryst {
namespace {

int64_t DeadlineNs(const Patience& patience) {
  return BootClock().NowNs() +
         std::min(absl::ToInt64Nanoseconds(patience.left()), int64_t{kMaxWishNs});
}

}  // namespace

OwnerGroup::OwnerGroup(Parts parts)
    : parts_(std::move(parts)), incarnation_(absl::Uniform<uint64_t>(absl::BitGen()) | 1) {
  const bool may_lead =
      parts_.rank < (parts_.make_decider == nullptr ? 1 : LeaderLink::kMostLeaders);
  if (may_lead) {
    Leading::Parts leading;
    leading.leads = parts_.leads;
    leading.life = incarnation_;
    leading.covers = parts_.covers;
    leading.tell = [this](std::vector<Answer> news) { Tell(std::move(news)); };
    leading.make_decider = parts_.make_decider;
    leading.wake = [this] { link_->Wake(); };
    leading_ = std::make_shared<Leading>(std::move(leading));
  }
  LeaderLink::Parts link;
  link.server = parts_.server;
  link.set = parts_.set;
  link.leaders = LeaderLink::LeadersOf(parts_.owners);
  if (parts_.make_decider == nullptr) link.leaders.resize(1);
  link.incarnation = incarnation_;
  link.own = leading_;
  link.patience_ns = parts_.leads.times.permit_ns;
  link.turn = [this](const LeaderLink::Heard& heard, std::vector<Question>* questions) {
    return Turn(heard, questions);
  };
  link_ = std::make_unique<LeaderLink>(std::move(link));
  if (leading_ != nullptr) leading_->Open();
}

OwnerGroup::~OwnerGroup() = default;

void OwnerGroup::Close() {
  link_->Stop();
  if (leading_ != nullptr) leading_->Close();
  MutexLock lock(&mu_);
  closed_ = true;
  group_.reset();
  sealed_.clear();
  decided_.NotifyAll();
}

void OwnerGroup::Declare(const WeightRoot& layouts) {
  GroupOwner::Self self;
  self.incarnation = incarnation_;
  self.rank = parts_.rank;
  self.owners = parts_.owners.size();
  self.layout = layouts;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    group_ = std::make_unique<GroupOwner>(
        self, parts_.leads.times,
        [this](const Question& question)
            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { questions_.push_back(question); });
  }
  link_->Wake();
}

int64_t OwnerGroup::Turn(const LeaderLink::Heard& heard, std::vector<Question>* questions) {
  const int64_t now_ns = BootClock().NowNs();
  std::vector<WeightVersion> sealed;
  int64_t next_ns = 0;
  uint64_t active = 0;
  bool tells = false;
  {
    MutexLock lock(&mu_);
    if (group_ == nullptr) return now_ns + parts_.leads.times.permit_ns;  // Declare() wakes it.
    for (const Answer& answer : heard.answers) group_->OnAnswer(answer, now_ns);
    if (heard.ask_soon) group_->AskSoon();
    next_ns = group_->Advance(now_ns);
    active = group_->state().active.version.number;
    questions->swap(questions_);
    questions_.clear();
    // Also what was decided after the caller of Seal() had stopped waiting.
    if (std::exchange(told_length_, group_->state().length) != group_->state().length) {
      sealed.push_back(group_->state().active.version);
      for (const LogEntry& entry : group_->state().open) sealed.push_back(entry.version);
    }
    sealed.insert(sealed.end(), sealed_.begin(), sealed_.end());
    sealed_.clear();
    telling_ = std::exchange(told_active_, active) != active || !sealed.empty();
    tells = telling_;
  }
  parts_.on_active(active);
  for (const WeightVersion& version : sealed) parts_.on_sealed(version);
  if (tells) {
    MutexLock lock(&mu_);
    telling_ = false;
    decided_.NotifyAll();
  }
  return next_ns;
}

// This owner's own news go to its link.
void OwnerGroup::Tell(std::vector<Answer> news) {
  for (Answer& own : TakeFor(incarnation_, &news)) link_->Hear(std::move(own));
  if (!news.empty()) parts_.tell(std::move(news));
}

absl::Status OwnerGroup::Seal(uint64_t number, const WeightRoot& digest, const Patience& patience) {
  const auto decision = std::make_shared<Decision>();
  {
    MutexLock lock(&mu_);
    if (group_ == nullptr) return absl::AbortedError("this owner has left the set of weights");
    group_->Seal(number, digest, DeadlineNs(patience),
                 [this, decision](absl::StatusOr<LogEntry> entry)
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                       decision->ended = true;
                       decision->status = entry.status();
                       if (entry.ok()) sealed_.push_back(entry->version);
                       decided_.NotifyAll();
                     });
  }
  link_->Wake();
  const WakesOnCancel wakes(patience, &mu_, &decided_);
  MutexLock lock(&mu_);
  while (!decision->ended || !sealed_.empty() || telling_) {
    if (patience.cancelled() && !decision->ended) {
      group_->Withdraw(number);
      continue;
    }
    decided_.Wait(&mu_);
  }
  return decision->status;
}

absl::Status OwnerGroup::Activate(uint64_t number, ActivateMode mode, const Patience& patience) {
  const auto decision = std::make_shared<Decision>();
  {
    MutexLock lock(&mu_);
    if (group_ == nullptr)
      return absl::FailedPreconditionError(
          "this set of weights has no layouts yet: declare them first");
    group_->Activate(number, mode, DeadlineNs(patience), [this, decision](absl::Status status) {
      decision->ended = true;
      decision->status = std::move(status);
      decided_.NotifyAll();
    });
  }
  link_->Wake();
  const WakesOnCancel wakes(patience, &mu_, &decided_);
  MutexLock lock(&mu_);
  while (!decision->ended || telling_) {
    if (patience.cancelled() && !decision->ended) {
      group_->WithdrawActivate();
      continue;
    }
    decided_.Wait(&mu_);
  }
  return decision->status;
}

absl::Status OwnerGroup::NoLeader() const {
  return absl::UnavailableError(
      absl::StrCat("owner ", parts_.rank, " does not lead the set of weights: ask owner 0"));
}

absl::StatusOr<Answer> OwnerGroup::OnQuestion(const Question& question, absl::string_view worker) {
  if (leading_ != nullptr) return leading_->OnQuestion(question, worker);
  return NoLeader();
}

absl::StatusOr<std::vector<Holder>> OwnerGroup::HoldersOf(const WeightVersion& version,
                                                          uint64_t asker) const {
  if (leading_ != nullptr) return leading_->HoldersOf(version, asker);
  return NoLeader();
}

std::string OwnerGroup::Explain() const {
  std::string text =
      absl::StrCat("set ", parts_.set, ": owner ", parts_.rank, " of ", parts_.owners.size());
  {
    MutexLock lock(&mu_);
    if (group_ == nullptr) {
      absl::StrAppend(&text, "; nothing is declared");
    } else {
      const LogState& state = group_->state();
      absl::StrAppend(&text, "; term ", state.term, group_->in_term() ? "" : ", not in it", "; ",
                      state.members.size(), state.members.size() == 1 ? " member" : " members",
                      "; version ", state.active.version.number, " is active");
    }
  }
  const std::string note = Note();
  return note.empty() ? text : absl::StrCat(text, "; ", note);
}

std::optional<uint32_t> OwnerGroup::LostOwner() const {
  return leading_ == nullptr ? std::nullopt : leading_->LostOwner();
}

uint64_t OwnerGroup::term() const {
  MutexLock lock(&mu_);
  return group_ == nullptr ? 0 : group_->state().term;
}

size_t OwnerGroup::members() const {
  MutexLock lock(&mu_);
  return group_ == nullptr ? 0 : group_->state().members.size();
}

std::string OwnerGroup::Note() const {
  const std::string note = link_->Note();
  if (leading_ == nullptr) return note;
  return absl::StrCat(leading_->Explain(), note.empty() ? "" : "; ", note);
}

void OwnerGroup::View(WeightView* view) const {
  view->set = parts_.set;
  view->role = "owner";
  view->incarnation = incarnation_;
  view->rank = parts_.rank;
  view->owners = static_cast<uint32_t>(parts_.owners.size());
  view->note = Note();
  if (leading_ != nullptr) leading_->View(view);
  MutexLock lock(&mu_);
  if (group_ == nullptr) view->note = "nothing is declared";
}

}  // namespace tryst
