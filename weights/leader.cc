#include "weights/leader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "weights/stage_table.h"

namespace tryst {
namespace {

bool Holds(const Question& question, const WeightVersion& version) {
  return question.stage == version && question.stage_state == StageState::kHeld;
}

bool HasStaged(const Question& question, const WeightVersion& version) {
  return question.stage == version && (question.stage_state == StageState::kStaged ||
                                       question.stage_state == StageState::kHolding ||
                                       question.stage_state == StageState::kHeld);
}

bool CannotStage(const Question& question, const WeightVersion& version) {
  return question.stage == version && question.stage_state == StageState::kFailed;
}

// Whether `now` tells the leader something by which the protocol could go on.
bool TellsMore(const Question& now, const Question& before) {
  if (now.ready.size() != before.ready.size()) return true;
  for (size_t i = 0; i < now.ready.size(); ++i) {
    if (now.ready[i].number != before.ready[i].number ||
        now.ready[i].term != before.ready[i].term ||
        now.ready[i].digest != before.ready[i].digest) {
      return true;
    }
  }
  return before.question == 0 || now.stage != before.stage ||
         now.stage_state != before.stage_state || now.serving != before.serving ||
         now.owner != before.owner || now.term != before.term || now.log != before.log;
}

bool Serves(const Question& question, const WeightVersion& version) {
  return question.serving == version;
}

}  // namespace

// ---- The lease and the log ----

int64_t WeightLeader::Advance(int64_t now_ns) {
  KeepOffice(now_ns);
  if (phase_ != Phase::kFollows && log_call_ != 0 &&
      now_ns >= log_asked_ns_ + options_.times.retry_ns) {
    AskLog(now_ns);
  }
  if (leads(now_ns) && log_call_ == 0) Lead(now_ns);
  if (tell_) TellAll();
  const int64_t next_ns = now_ns + std::min(options_.times.retry_ns, options_.times.permit_ns / 6);
  const int64_t all_asked_ns = leads_since_ns_ + options_.times.permit_ns;
  return wishes_wait_ && now_ns < all_asked_ns ? std::min(next_ns, all_asked_ns) : next_ns;
}

void WeightLeader::KeepOffice(int64_t now_ns) {
  const bool late = now_ns >= lease_asked_ns_ + options_.times.retry_ns;
  if (lease_call_ != 0 ? !late : now_ns < next_lease_ns_) return;
  lease_call_ = ++calls_;
  lease_asked_ns_ = now_ns;
  if (phase_ == Phase::kFollows) {
    decider_->TakeLease(lease_call_);
  } else {
    decider_->KeepLease(lease_call_, lease_);
  }
}

void WeightLeader::OnDecider(const DeciderAnswer& answer, int64_t now_ns) {
  if (answer.call != 0 && answer.call == lease_call_) {
    lease_call_ = 0;
    OnLease(answer, now_ns);
  } else if (answer.call != 0 && answer.call == log_call_) {
    log_call_ = 0;
    OnLogAnswer(answer, now_ns);
  }
  Advance(now_ns);
}

void WeightLeader::OnLease(const DeciderAnswer& answer, int64_t now_ns) {
  next_lease_ns_ = now_ns + options_.times.lease_ns / 3;
  if (answer.outcome != DeciderOutcome::kDone) {
    Resign();
    return;
  }
  if (phase_ != Phase::kFollows && answer.log != life_) {
    Resign();
    next_lease_ns_ = now_ns;
    return;
  }
  // Counted from the question: the decider counts from a later moment.
  lease_end_ns_ = lease_asked_ns_ + SurelyNotOver(options_.times.lease_ns);
  if (phase_ != Phase::kFollows) return;
  phase_ = Phase::kReads;
  lease_ = answer.lease;
  life_ = answer.log;
  log_.Restart({});
  // A former leader may have given permits until now, also to whom no log names any more.
  quiet_ns_ = now_ns + SurelyOver(options_.times.permit_ns);
  Read(now_ns);
}

void WeightLeader::Resign() {
  phase_ = Phase::kFollows;
  lease_ = 0;
  lease_end_ns_ = 0;
  log_call_ = 0;
  append_.reset();
  reading_ = false;
  next_join_ns_ = 0;
  peers_.clear();
  activation_ = Activation::kNone;
  version_ = {};
  wishes_wait_ = false;
  tell_ = false;
}

void WeightLeader::Read(int64_t now_ns) {
  reading_ = true;
  AskLog(now_ns);
}

void WeightLeader::Append(LogEntry entry, int64_t now_ns) {
  const absl::Status may = log_.state().Check(entry);
  TRYST_CHECK(may.ok()) << may.ToString();
  append_ = std::move(entry);
  AskLog(now_ns);
}

// Also once more, with the same words, where no answer came: the log grows once.
void WeightLeader::AskLog(int64_t now_ns) {
  log_call_ = ++calls_;
  log_asked_ns_ = now_ns;
  if (reading_) {
    decider_->ReadFrom(log_call_, log_.state().length);
  } else {
    decider_->Append(log_call_, log_.state().length, lease_, *append_);
  }
}

void WeightLeader::OnLogAnswer(const DeciderAnswer& answer, int64_t now_ns) {
  if (answer.log != life_ || answer.outcome == DeciderOutcome::kNoLease) {
    Resign();
    return;
  }
  if (!reading_) {
    if (answer.outcome == DeciderOutcome::kOtherLength) {
      Read(now_ns);  // An answer was lost: what was asked is there.
      return;
    }
    const absl::Status done = log_.Append(*append_);
    TRYST_CHECK(done.ok()) << done.ToString();
    OnLogGrew();
    return;
  }
  if (answer.slice.base.has_value() && answer.slice.base->length > log_.state().length) {
    log_.Restart(*answer.slice.base);
  }
  uint64_t index = answer.slice.first;
  for (const LogEntry& entry : answer.slice.entries) {
    if (index++ != log_.state().length) continue;
    if (absl::Status may = log_.Append(entry); !may.ok()) {
      TRYST_LOG(Error) << "an entry of the log of weights contradicts the entries before, so this "
                          "worker no longer leads the set: "
                       << may.ToString();
      Resign();
      return;
    }
  }
  if (log_.state().length < answer.length) {
    Read(now_ns);
    return;
  }
  reading_ = false;
  if (phase_ == Phase::kReads) {
    phase_ = Phase::kLeads;
    leads_since_ns_ = now_ns;
    wishes_wait_ = true;
  }
  OnLogGrew();
}

void WeightLeader::OnLogGrew() {
  append_.reset();
  tell_ = true;
  const LogEntry* open = log_.state().FindOpen(version_.number);
  if (activation_ == Activation::kNone) return;
  if (open == nullptr) {  // A number is sealed once in a log.
    activation_ = Activation::kNone;
    version_ = {};
  } else if (activation_ == Activation::kChoosing) {
    activation_ = Activation::kPreparing;  // Its append lost against another.
  }
}

// ---- Who asks, and what it hears ----

void WeightLeader::OnQuestion(const Question& question, int64_t now_ns, absl::string_view worker) {
  // Without a lease it may know an old log, or one that is lost.
  if (!leads(now_ns) || question.incarnation == 0) return;
  if (question.ready.size() > kMaxReady || question.owners > kMaxOwners ||
      question.held.size() > kMaxHeldVersions || worker.size() > kMaxWorkerBytes) {
    return;
  }
  auto found = peers_.find(question.incarnation);
  if (found == peers_.end()) {
    if (peers_.size() >= kMaxPeers) Forget(now_ns);
    if (peers_.size() >= kMaxPeers) return;
    found = peers_.emplace(question.incarnation, Peer()).first;
  }
  Peer& peer = found->second;
  if (question.question <= peer.last.question) return;
  bool more = TellsMore(question, peer.last);
  // A joiner has to have applied the log.
  more = more ||
         (question.length != peer.last.length && !log_.state().HasMember(question.incarnation));
  const bool switched = question.serving != peer.last.serving;
  BeginWhatIsWished(question, now_ns);
  peer.last = question;
  peer.worker = std::string(worker);
  peer.heard_ns = now_ns;
  // Whoever waits for the activation hears of its end.
  if (switched && Settled()) tell_ = true;
  if (more || tell_) Advance(now_ns);
  Answer answer = MakeAnswer(question);
  answer.question = question.question;
  answer.permit = MayPermit(question, now_ns);
  if (answer.permit) {
    peer.permit_end_ns = now_ns + SurelyOver(options_.times.permit_ns);
  }
  say_(answer);
}

bool WeightLeader::MayPermit(const Question& question, int64_t now_ns) const {
  const LogState& state = log_.state();
  return leads(now_ns) && question.member && state.HasMember(question.incarnation) &&
         state.active.version.number != 0 && question.serving == state.active.version &&
         // It may be chosen already, and then no permit for what was before it may begin.
         activation_ != Activation::kChoosing && activation_ != Activation::kHolding;
}

Answer WeightLeader::MakeAnswer(const Question& question) const {
  Answer answer;
  answer.incarnation = question.incarnation;
  answer.log = life_;
  answer.slice = log_.ReadFrom(question.log == life_ ? question.length : 0, kEntriesInAnswer);
  answer.length = log_.state().length;
  if (activation_ != Activation::kNone) {
    answer.prepare = version_;
    answer.hold = activation_ == Activation::kHolding ||
                  (activation_ == Activation::kChoosing && mode_ == ActivateMode::kBarrier);
  }
  if (question.owner && Settled()) answer.settled = log_.state().active.version.number;
  return answer;
}

// Whether every member serves the active version.
bool WeightLeader::Settled() const {
  const LogState& state = log_.state();
  return state.active.version.number != 0 && !state.members.empty() &&
         std::all_of(state.members.begin(), state.members.end(), [&](uint64_t member) {
           const Peer* peer = FindPeer(member);
           return peer != nullptr && Serves(peer->last, state.active.version);
         });
}

void WeightLeader::TellAll() {
  tell_ = false;
  for (const auto& peer : peers_) say_(MakeAnswer(peer.second.last));
}

// Whoever is silent, in no entry and without a permit.
void WeightLeader::Forget(int64_t now_ns) {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const std::vector<uint64_t>& owners = log_.state().owners;
    const bool kept = Alive(peer->second, now_ns) || peer->second.permit_end_ns > now_ns ||
                      log_.state().HasMember(peer->first) ||
                      std::find(owners.begin(), owners.end(), peer->first) != owners.end();
    peer = kept ? std::next(peer) : peers_.erase(peer);
  }
}

bool WeightLeader::Alive(const Peer& peer, int64_t now_ns) const {
  return now_ns < peer.heard_ns + options_.times.silent_ns;
}

const WeightLeader::Peer* WeightLeader::FindPeer(uint64_t incarnation) const {
  const auto found = peers_.find(incarnation);
  return found == peers_.end() ? nullptr : &found->second;
}

bool WeightLeader::Lost(uint64_t incarnation, int64_t now_ns) const {
  const Peer* peer = FindPeer(incarnation);
  const int64_t heard_ns = peer == nullptr ? leads_since_ns_ : peer->heard_ns;
  return now_ns >= std::max(heard_ns, leads_since_ns_) + options_.times.silent_ns;
}

// ---- What it appends ----

void WeightLeader::Lead(int64_t now_ns) {
  if (now_ns >= next_forget_ns_) {
    next_forget_ns_ = now_ns + options_.times.silent_ns;
    Forget(now_ns);
  }
  if (BeginTerm(now_ns) || DropLost(now_ns) || SealReady(now_ns) || ChangeMembers(now_ns)) return;
  BeginWhatWaited(now_ns);
  GoOnActivating(now_ns);
}

// By rank, those who are there now; as many as rank 0 declares.
std::vector<const WeightLeader::Peer*> WeightLeader::Owners(int64_t now_ns) const {
  const std::vector<uint64_t>& owners = log_.state().owners;
  std::vector<const Peer*> found;
  for (const auto& [incarnation, peer] : peers_) {
    // Who has not applied the log does not know yet whether another took its place.
    if (!peer.last.owner || !Alive(peer, now_ns) || peer.last.log != life_ ||
        peer.last.term != log_.state().term || peer.last.rank >= kMaxOwners) {
      continue;
    }
    const uint32_t rank = peer.last.rank;
    const bool named = rank < owners.size() && owners[rank] == incarnation;
    if (!named && log_.state().WasReplaced(incarnation)) continue;
    if (found.size() <= rank) found.resize(rank + 1, nullptr);
    // A new life takes the place of the one that the log names.
    if (found[rank] == nullptr ||
        (rank < owners.size() && owners[rank] == found[rank]->last.incarnation)) {
      found[rank] = &peer;
    }
  }
  if (!found.empty() && found[0] != nullptr) found.resize(found[0]->last.owners, nullptr);
  return found;
}

bool WeightLeader::BeginTerm(int64_t now_ns) {
  LogEntry entry;
  entry.kind = EntryKind::kOwners;
  entry.term = log_.state().term + 1;
  // Who knows of a log that was lost has said so by then, and which numbers it had.
  if (log_.state().length == 0 && now_ns < leads_since_ns_ + options_.times.permit_ns / 2) {
    return false;
  }
  const std::vector<const Peer*> owners = Owners(now_ns);
  for (const Peer* owner : owners) {
    if (owner == nullptr || owner->last.owners != owners.size() ||
        owner->last.layout != owners[0]->last.layout) {
      return false;
    }
    entry.incarnations.push_back(owner->last.incarnation);
    entry.root = owner->last.layout;
  }
  if (owners.empty() ||
      (entry.incarnations == log_.state().owners && entry.root == log_.state().layout)) {
    return false;
  }
  for (const auto& peer : peers_) entry.floor = std::max(entry.floor, peer.second.last.floor);
  if (!log_.state().Check(entry).ok()) return false;
  Append(std::move(entry), now_ns);
  return true;
}

// What one owner can no longer finish. One entry drops all numbers up to it.
bool WeightLeader::DropLost(int64_t now_ns) {
  const LogState& state = log_.state();
  bool lost = false;
  uint64_t highest = 0;
  for (uint32_t rank = 0; rank < state.owners.size(); ++rank) {
    const Peer* owner = FindPeer(state.owners[rank]);
    lost = lost || Lost(state.owners[rank], now_ns);
    if (owner == nullptr) continue;
    for (const OwnerReady& ready : owner->last.ready) {
      if (ready.term == state.term) highest = std::max(highest, ready.number);
    }
  }
  return lost && highest > state.floor && Drop(highest, now_ns);
}

bool WeightLeader::SealReady(int64_t now_ns) {
  const LogState& state = log_.state();
  if (state.owners.empty()) return false;
  std::map<uint64_t, std::vector<WeightRoot>> ready;  // By number, from rank 0 on without a gap.
  for (uint32_t rank = 0; rank < state.owners.size(); ++rank) {
    const Peer* owner = FindPeer(state.owners[rank]);
    if (owner == nullptr) return false;
    for (const OwnerReady& one : owner->last.ready) {
      if (one.term != state.term || one.number <= state.floor) continue;
      std::vector<WeightRoot>& digests = ready[one.number];
      if (digests.size() == rank) digests.push_back(one.digest);
    }
  }
  for (auto& [number, digests] : ready) {
    if (digests.size() != state.owners.size()) continue;
    const absl::StatusOr<Covers::Sealed> sealed = covers_->Judge(state.term, number, digests);
    if (!sealed.ok() && sealed.status().code() == absl::StatusCode::kUnavailable) continue;
    if (!sealed.ok()) return Drop(number, now_ns);
    if (state.open.size() >= kMaxOpenVersions) {
      const bool busy = state.open[0].version == version_;
      return Drop(state.open[busy ? 1 : 0].version.number, now_ns);
    }
    LogEntry entry;
    entry.kind = EntryKind::kSealed;
    entry.version = {number, sealed->birth};
    entry.term = state.term;
    entry.root = sealed->root;
    entry.digests = std::move(digests);
    Append(std::move(entry), now_ns);
    return true;
  }
  return false;
}

bool WeightLeader::Drop(uint64_t number, int64_t now_ns) {
  LogEntry entry;
  entry.kind = EntryKind::kDropped;
  const LogEntry* open = log_.state().FindOpen(number);
  entry.version = open == nullptr ? WeightVersion{number, 0} : open->version;
  Append(std::move(entry), now_ns);
  return true;
}

bool WeightLeader::ChangeMembers(int64_t now_ns) {
  const LogState& state = log_.state();
  LogEntry entry;
  entry.kind = EntryKind::kMembers;
  for (const uint64_t member : state.members) {
    if (!Lost(member, now_ns)) entry.incarnations.push_back(member);
  }
  const bool lost = entry.incarnations.size() < state.members.size();
  if (lost && activation_ != Activation::kNone &&
      entry.incarnations.size() < options_.min_members) {
    return Drop(version_.number, now_ns);
  }
  // Who comes soon after others waits, so that a fleet that starts takes few entries.
  if (activation_ != Activation::kHolding && (lost || now_ns >= next_join_ns_)) {
    for (const auto& [incarnation, peer] : peers_) {
      if (peer.last.member && !state.HasMember(incarnation) && Alive(peer, now_ns) &&
          peer.last.log == life_ && peer.last.length == state.length &&
          entry.incarnations.size() < kMaxGroup) {
        entry.incarnations.push_back(incarnation);
      }
    }
  }
  std::sort(entry.incarnations.begin(), entry.incarnations.end());
  if (entry.incarnations == state.members) return false;
  next_join_ns_ = now_ns + options_.times.permit_ns / 6;
  Append(std::move(entry), now_ns);
  return true;
}

// ---- An activation ----

void WeightLeader::BeginWhatIsWished(const Question& question, int64_t now_ns) {
  if (activation_ != Activation::kNone) return;
  const bool held =
      question.stage_state == StageState::kHolding || question.stage_state == StageState::kHeld;
  if (held && question.log == life_) {
    // Its leader is gone, and it waits for the decision.
    Begin(question.stage.number, ActivateMode::kBarrier,
          now_ns + options_.resume_permits * options_.times.permit_ns);
  } else if (question.wish.number != 0 && question.wish.timeout_ns > 0 &&
             now_ns >= leads_since_ns_ + options_.times.permit_ns) {
    // By now all have asked, and nobody holds another version.
    Begin(question.wish.number, question.wish.mode,
          now_ns + std::min(question.wish.timeout_ns, kMaxWishNs));
  }
}

// What was wished of a new leader before all had asked it begins now, not with its owner's next
// question.
void WeightLeader::BeginWhatWaited(int64_t now_ns) {
  if (!wishes_wait_ || activation_ != Activation::kNone ||
      now_ns < leads_since_ns_ + options_.times.permit_ns) {
    return;
  }
  wishes_wait_ = false;
  for (const auto& [incarnation, peer] : peers_) {
    const Wish& wish = peer.last.wish;
    const int64_t until_ns = peer.heard_ns + std::min(wish.timeout_ns, kMaxWishNs);
    if (wish.number == 0 || now_ns >= until_ns || !Alive(peer, now_ns)) continue;
    Begin(wish.number, wish.mode, until_ns);
    if (activation_ != Activation::kNone) return;
  }
}

void WeightLeader::Begin(uint64_t number, ActivateMode mode, int64_t deadline_ns) {
  const LogEntry* open = log_.state().FindOpen(number);
  if (open == nullptr) return;
  activation_ = Activation::kPreparing;
  version_ = open->version;
  mode_ = mode;
  deadline_ns_ = deadline_ns;
  tell_ = true;
  // Another activation may have made its members let go of what they had said to have whole.
  for (auto& peer : peers_) {
    peer.second.last.stage = {};
    peer.second.last.stage_state = StageState::kNone;
  }
}

bool WeightLeader::AllMembers(bool (*have)(const Question&, const WeightVersion&)) const {
  for (const uint64_t member : log_.state().members) {
    const Peer* peer = FindPeer(member);
    if (peer == nullptr || !have(peer->last, version_)) return false;
  }
  return true;
}

// All members hold, and no permit of anybody else lasts any more.
bool WeightLeader::NobodyServes(int64_t now_ns) const {
  if (now_ns < quiet_ns_ || !AllMembers(Holds)) return false;
  for (const auto& peer : peers_) {
    if (peer.second.permit_end_ns > now_ns && !Holds(peer.second.last, version_)) return false;
  }
  return true;
}

void WeightLeader::PutOutBut(bool (*have)(const Question&, const WeightVersion&), int64_t now_ns) {
  LogEntry entry;
  entry.kind = EntryKind::kMembers;
  for (const uint64_t member : log_.state().members) {
    const Peer* peer = FindPeer(member);
    if (peer != nullptr && have(peer->last, version_)) entry.incarnations.push_back(member);
  }
  if (entry.incarnations.size() < std::max<size_t>(options_.min_members, 1)) {
    Drop(version_.number, now_ns);
  } else if (entry.incarnations != log_.state().members) {
    Append(std::move(entry), now_ns);
  }
}

void WeightLeader::GoOnActivating(int64_t now_ns) {
  if (activation_ == Activation::kNone) return;
  const LogState& state = log_.state();
  for (const uint64_t member : state.members) {
    const Peer* peer = FindPeer(member);
    if (peer != nullptr && CannotStage(peer->last, version_)) {
      Drop(version_.number, now_ns);
      return;
    }
  }
  const bool enough = state.members.size() >= std::max<size_t>(options_.min_members, 1);
  const bool barrier = mode_ == ActivateMode::kBarrier;
  if (activation_ == Activation::kPreparing && enough && AllMembers(HasStaged) && barrier) {
    activation_ = Activation::kHolding;
    // Who was late to stage it leaves the others time to end what runs.
    deadline_ns_ = std::max(deadline_ns_, now_ns + 2 * options_.times.permit_ns);
    tell_ = true;
  }
  const bool ready = barrier ? activation_ == Activation::kHolding && NobodyServes(now_ns)
                             : enough && AllMembers(HasStaged);
  if (ready && enough) {
    activation_ = Activation::kChoosing;
    LogEntry entry;
    entry.kind = EntryKind::kActive;
    entry.version = version_;
    entry.mode = mode_;
    Append(std::move(entry), now_ns);
  } else if (now_ns >= deadline_ns_) {
    PutOutBut(barrier && activation_ == Activation::kHolding ? Holds : HasStaged, now_ns);
  }
}

std::string WeightLeader::WhyNoTerm(int64_t now_ns) const {
  const std::vector<const Peer*> owners = Owners(now_ns);
  if (owners.empty() || owners[0] == nullptr) return "; the owner of rank 0 has not declared";
  for (size_t rank = 1; rank < owners.size(); ++rank) {
    if (owners[rank] == nullptr) {
      return absl::StrCat("; of ", owners.size(), " owners rank ", rank, " has not declared");
    }
    if (owners[rank]->last.owners != owners.size() ||
        owners[rank]->last.layout != owners[0]->last.layout) {
      return absl::StrCat("; the owner of rank ", rank, " has declared another layout than rank 0");
    }
  }
  return "";
}

std::optional<uint32_t> WeightLeader::LostOwner(int64_t now_ns) const {
  const std::vector<uint64_t>& owners = log_.state().owners;
  const std::vector<const Peer*> alive = Owners(now_ns);
  for (uint32_t rank = 0; rank < owners.size(); ++rank) {
    const bool replaced = rank < alive.size() && alive[rank] != nullptr;
    if (!replaced && Lost(owners[rank], now_ns - 2 * options_.times.silent_ns)) return rank;
  }
  return std::nullopt;
}

std::vector<uint64_t> WeightLeader::Awaited() const {
  const bool holds = activation_ == Activation::kHolding && mode_ == ActivateMode::kBarrier;
  std::vector<uint64_t> out;
  for (const uint64_t member : log_.state().members) {
    const Peer* peer = FindPeer(member);
    const bool done = peer != nullptr && (activation_ == Activation::kNone
                                              ? peer->last.serving == log_.state().active.version
                                          : holds ? Holds(peer->last, version_)
                                                  : HasStaged(peer->last, version_));
    if (!done) out.push_back(member);
  }
  return out;
}

std::vector<Holder> WeightLeader::HoldersOf(const WeightVersion& version, uint64_t asker,
                                            int64_t now_ns) const {
  std::vector<Holder> holders;
  const LogState& state = log_.state();
  const LogEntry* const open = state.FindOpen(version.number);
  const bool wanted = version.number != 0 && (state.active.version == version ||
                                              (open != nullptr && open->version == version));
  if (!leads(now_ns) || !wanted) return holders;
  // Incarnations are random, and so whoever comes next is any.
  auto at = peers_.upper_bound(asker);
  for (size_t i = 0; i < peers_.size() && holders.size() < kMaxHolders; ++i, ++at) {
    if (at == peers_.end()) at = peers_.begin();
    const Peer& peer = at->second;
    const std::vector<WeightVersion>& held = peer.last.held;
    if (at->first == asker || peer.last.holder == 0 || peer.worker.empty() ||
        !Alive(peer, now_ns) || std::find(held.begin(), held.end(), version) == held.end()) {
      continue;
    }
    holders.push_back({peer.worker, peer.last.holder});
  }
  return holders;
}

size_t WeightLeader::behind() const {
  const std::vector<uint64_t>& members = log_.state().members;
  return std::count_if(members.begin(), members.end(), [this](uint64_t member) {
    const Peer* peer = FindPeer(member);
    return peer == nullptr || peer->last.serving != log_.state().active.version;
  });
}

std::string WeightLeader::Explain(int64_t now_ns) const {
  if (phase_ != Phase::kLeads) return "does not lead";
  if (activation_ == Activation::kNone) {
    return absl::StrCat("leads; nothing is being activated", WhyNoTerm(now_ns));
  }
  size_t staged = 0, held = 0;
  for (const uint64_t member : log_.state().members) {
    const Peer* peer = FindPeer(member);
    staged += peer != nullptr && HasStaged(peer->last, version_);
    held += peer != nullptr && Holds(peer->last, version_);
  }
  return absl::StrCat("activates version ", version_.number, ": of ", log_.state().members.size(),
                      " members ", staged, " have it whole, ", held, " hold",
                      leads(now_ns) ? "" : "; the lease is over");
}

}  // namespace tryst
