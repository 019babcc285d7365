#include "tests/weights/fleet_sim.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/weights/fleet_judge.h"
#include "tests/weights/fleet_watch.h"
#include "weights/leader.h"
#include "weights/member.h"
#include "weights/owner.h"
#include "weights/stage_table.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
// A leader knows lives that are over, until it forgets them.
constexpr size_t kFormerPeers = 32;

// A clock that runs a little fast or slow.
class DriftingClock final : public Clock {
 public:
  DriftingClock(const int64_t* world_ns, int64_t ppm, int64_t offset_ns)
      : world_ns_(world_ns), ppm_(ppm), offset_ns_(offset_ns) {}
  int64_t NowNs() const override { return offset_ns_ + *world_ns_ + *world_ns_ / 1'000'000 * ppm_; }
  // A moment of the world's clock, no later than the one at which this clock shows `local_ns`.
  int64_t WorldNs(int64_t local_ns) const {
    return static_cast<int64_t>(static_cast<double>(local_ns - offset_ns_) * 1e6 /
                                static_cast<double>(1'000'000 + ppm_));
  }

 private:
  const int64_t* const world_ns_;
  const int64_t ppm_, offset_ns_;
};

void Short(std::string* out, uint64_t incarnation) { absl::StrAppend(out, incarnation % 1000); }

enum class Role { kLeader, kOwner, kMember };

class Fleet;

// One life of one worker.
struct Process {
  Role role = Role::kMember;
  int index = 0;
  uint64_t incarnation = 0;
  std::unique_ptr<DriftingClock> clock;
  std::unique_ptr<Decider> decider;
  std::unique_ptr<WeightLeader> leader;
  std::unique_ptr<GroupOwner> owner;
  std::unique_ptr<GroupMember::Port> port;
  std::unique_ptr<Permit> permit;
  std::unique_ptr<GroupMember> member;
  std::unique_ptr<LogStore> store;  // Where this worker decides.
  // The engine: what lies where it serves from, and beside it.
  WeightVersion memory, beside;
  bool touched = false;
  // These are the state of a trainer.
  bool sealing = false, activating = false;
  int64_t next_seal_ns = 0;
  int64_t paused_until = 0, cut_until = 0, slow_until = 0;
  int64_t superseded_ns = 0;
  int64_t timer_ns = 0;
};

// A place in the cluster, where one life follows another.
struct Place {
  Role role;
  int index;
  std::unique_ptr<Process> process;  // Null while it is down.
  bool retired = false;              // Another place has its rank.
};

class AllCovers final : public Covers {
 public:
  explicit AllCovers(SimRandom* random) : random_(random) {}
  absl::StatusOr<Sealed> Judge(uint64_t term, uint64_t number,
                               const std::vector<WeightRoot>& digests) override {
    if (number % 11 == 10) return absl::DataLossError("replicas differ");
    WeightRoot root = {};
    for (const WeightRoot& digest : digests) {
      for (size_t i = 0; i < root.size(); ++i) root[i] = root[i] * 31 + digest[i];
    }
    root[0] ^= term;
    return Sealed{random_->Next() | 1, root};
  }

 private:
  SimRandom* const random_;
};

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options)
      : options_(options),
        random_(options.seed),
        network_(random_.Fork()),
        chaos_(random_.Fork()),
        times_(),
        faults_end_ns_(options.run_ns / 10 * 3),
        last_publish_ns_(options.run_ns / 8 * 5),
        judge_(times_, static_cast<size_t>(options.members + options.owners) + kFormerPeers,
               &report_),
        watch_(static_cast<size_t>(options.members), &report_) {
    for (int i = 0; i < options.leaders; ++i) places_.push_back({Role::kLeader, i, nullptr, false});
    for (int i = 0; i < options.owners; ++i) places_.push_back({Role::kOwner, i, nullptr, false});
    for (int i = 0; i < options.members; ++i) places_.push_back({Role::kMember, i, nullptr, false});
    if (!options.worker_decides) {
      store_clock_ = std::make_unique<DriftingClock>(&now_, Ppm(), 0);
      store_ = std::make_unique<LogStore>(random_.Next(), times_.lease_ns, options.kept_entries);
      judge_.OnLife(store_->life());
    }
  }
  ~Fleet() {
    for (Place& place : places_) place.process.reset();
  }

  FleetReport Run() {
    for (size_t i = 0; i < places_.size(); ++i) Start(i);
    if (options_.random_faults) ScheduleChaos();
    if (options_.decider_cut_ns != 0) {
      At(options_.decider_cut_at_ns, [this] { CutDecider(options_.decider_cut_ns); });
    }
    for (int64_t at = 10 * kMs; at < options_.run_ns; at += 50 * kMs) {
      At(at, [this] { Train(); });
    }
    while (!queue_.empty() && report_.violations.size() < 5) {
      auto first = queue_.begin();
      now_ = std::max(now_, first->first.first);
      if (now_ > options_.run_ns) break;
      const std::function<void()> what = std::move(first->second);
      queue_.erase(first);
      ++report_.events;
      heard_by_ = places_.size();
      what();
      Look();
      report_.trace_hash = report_.trace_hash * 1099511628211u + static_cast<uint64_t>(now_);
    }
    if (report_.violations.empty()) JudgeEnd();
    for (Place& place : places_) place.process.reset();
    for (const auto& call : open_calls_)
      judge_.Break("EndsOnce", absl::StrCat("call ", call, " never ended"));
    return report_;
  }

 private:
  class Engine final : public GroupMember::Port {
   public:
    Engine(Fleet* fleet, size_t place) : fleet_(fleet), place_(place) {}
    void Ask(const Question& question) override { fleet_->AskLeaders(place_, question); }
    void Stage(const LogEntry& version) override { fleet_->Stage(place_, version); }
    void Hold(const WeightVersion& version) override { fleet_->Hold(place_, version); }
    void Switch(const WeightVersion& version) override { fleet_->Switch(place_, version); }
    void Drop(const WeightVersion& version) override {
      Process* process = fleet_->places_[place_].process.get();
      if (process->beside == version) process->beside = {};
    }

   private:
    Fleet* const fleet_;
    const size_t place_;
  };

  class Line final : public Decider {
   public:
    Line(Fleet* fleet, size_t place) : fleet_(fleet), place_(place) {}
    void Append(uint64_t call, uint64_t length, uint64_t lease, const LogEntry& entry) override {
      fleet_->CallDecider(place_, call, [=, fleet = fleet_](LogStore* store, int64_t) {
        return fleet->Appended(store, length, lease, entry);
      });
    }
    void ReadFrom(uint64_t call, uint64_t index) override {
      fleet_->CallDecider(place_, call,
                          [index](LogStore* store, int64_t) { return store->ReadFrom(index); });
    }
    void TakeLease(uint64_t call) override {
      fleet_->CallDecider(place_, call, [=, fleet = fleet_](LogStore* store, int64_t now_ns) {
        const DeciderAnswer answer = store->TakeLease(now_ns);
        fleet->report_.reigns += answer.outcome == DeciderOutcome::kDone;
        return answer;
      });
    }
    void KeepLease(uint64_t call, uint64_t lease) override {
      fleet_->CallDecider(place_, call, [lease](LogStore* store, int64_t now_ns) {
        return store->KeepLease(lease, now_ns);
      });
    }

   private:
    Fleet* const fleet_;
    const size_t place_;
  };

  int64_t Ppm() { return random_.Between(-9000, 9000); }
  void At(int64_t at, std::function<void()> what) {
    queue_.emplace(std::make_pair(std::max(at, now_), ++sequence_), std::move(what));
  }
  void Say(const std::string& what) {
    if (options_.verbose) {
      printf("%9.3f ms  %s\n", static_cast<double>(now_) / kMs, what.c_str());
    }
  }
  std::string Name(size_t place) const {
    constexpr const char* kRoles[] = {"leader ", "owner ", "member "};
    return absl::StrCat(kRoles[static_cast<int>(places_[place].role)], places_[place].index);
  }
  bool Faulty() const { return now_ < faults_end_ns_; }

  // ---- Lives ----

  void Start(size_t at) {
    Place& place = places_[at];
    if (place.process != nullptr || place.retired) return;
    place.process = std::make_unique<Process>();
    Process* process = place.process.get();
    process->role = place.role;
    process->index = place.index;
    process->incarnation = random_.Next() | 1;
    process->clock = std::make_unique<DriftingClock>(&now_, Ppm(), random_.Between(0, 1000) * kMs);
    Say(absl::StrCat(Name(at), " starts as ", process->incarnation % 1000));
    if (place.role == Role::kLeader) {
      StartLeader(at, process);
    } else if (place.role == Role::kOwner) {
      GroupOwner::Self self;
      self.incarnation = process->incarnation;
      self.rank = static_cast<uint32_t>(place.index);
      self.owners = static_cast<uint32_t>(options_.owners);
      self.layout[0] = 7;
      process->owner = std::make_unique<GroupOwner>(
          self, times_, [this, at](const Question& question) { AskLeaders(at, question); });
    } else {
      process->permit = std::make_unique<Permit>(place.index % 2 == 1);
      process->port = std::make_unique<Engine>(this, at);
      process->member = std::make_unique<GroupMember>(process->incarnation, times_,
                                                      process->port.get(), process->permit.get());
    }
    Tick(at, process->incarnation);
  }

  void StartLeader(size_t at, Process* process) {
    if (options_.worker_decides && at == 0) {
      process->store =
          std::make_unique<LogStore>(process->incarnation, times_.lease_ns, options_.kept_entries);
      judge_.OnLife(process->store->life());
    }
    process->decider = std::make_unique<Line>(this, at);
    WeightLeader::Options options;
    options.times = times_;
    options.min_members = 1;
    options.kept_entries = options_.kept_entries;
    options.resume_permits = 4;
    process->leader =
        std::make_unique<WeightLeader>(options, process->decider.get(), &covers_,
                                       [this, at](const Answer& answer) { Deliver(at, answer); });
  }

  void Kill(size_t at) {
    Place& place = places_[at];
    if (place.process == nullptr) return;
    Say(absl::StrCat(Name(at), " is killed"));
    ++report_.kills;
    ++report_.operations;
    place.process.reset();
    At(now_ + network_.Between(20, 3000) * kMs, [this, at] { Start(at); });
    const size_t first = static_cast<size_t>(options_.leaders);  // The first owner's place.
    if (options_.first_leads && at == 0) Kill(first);
    if (options_.first_leads && at == first) Kill(0);
  }

  Process* Living(size_t at, uint64_t incarnation) {
    Process* process = places_[at].process.get();
    return process != nullptr && process->incarnation == incarnation ? process : nullptr;
  }

  void Tick(size_t at, uint64_t incarnation) {
    Process* process = Living(at, incarnation);
    if (process == nullptr) return;
    if (process->paused_until > now_) {
      At(process->paused_until, [=] { Tick(at, incarnation); });
      return;
    }
    const int64_t local = process->clock->NowNs();
    int64_t next = local;
    if (process->leader) next = process->leader->Advance(local);
    if (process->owner) next = process->owner->Advance(local);
    if (process->member) next = process->member->Advance(local);
    const int64_t due = std::max(process->clock->WorldNs(next), now_ + 5 * kMs);
    process->timer_ns = due;
    At(due, [=] {
      Process* still = Living(at, incarnation);
      if (still != nullptr && still->timer_ns <= now_) Tick(at, incarnation);
    });
  }

  // ---- The network ----

  bool Cut(size_t at) const {
    const Process* process = places_[at].process.get();
    return process == nullptr || process->cut_until > now_;
  }

  // Runs `what` at the receiver, if that is the same life then.
  void Send(size_t from, size_t to, std::function<void(Process*)> what) {
    ++report_.messages;
    if (Faulty()) report_.messages_with_faults = report_.messages;
    Process* receiver = places_[to].process.get();
    if (receiver == nullptr) return;
    int64_t delay_ns = network_.Between(50, 1500) * 1000;
    bool twice = false;
    if (options_.at_message == report_.messages) {
      if (Aim(from, to, &delay_ns, &twice)) return;
      receiver = places_[to].process.get();
      if (receiver == nullptr) return;
    }
    if (options_.random_faults && Faulty()) {
      if (network_.Chance(loss_per_million_)) return;
      if (network_.Chance(20'000)) delay_ns += network_.Between(1, 2500) * kMs;
      twice = twice || network_.Chance(10'000);
    }
    if (Cut(from) || Cut(to)) return;
    const auto cut = cut_links_.find({std::min(from, to), std::max(from, to)});
    if (cut != cut_links_.end() && cut->second > now_) return;
    if (receiver->slow_until > now_ || places_[from].process->slow_until > now_) {
      delay_ns += network_.Between(100, 1300) * kMs;
    }
    const uint64_t incarnation = receiver->incarnation;
    for (int i = 0; i < (twice ? 2 : 1); ++i) {
      At(now_ + delay_ns * (i + 1), [=] { Arrive(to, incarnation, what); });
    }
  }

  void Arrive(size_t to, uint64_t incarnation, const std::function<void(Process*)>& what) {
    Process* process = Living(to, incarnation);
    if (process == nullptr || process->cut_until > now_) return;
    if (process->paused_until > now_) {
      At(process->paused_until, [=] { Arrive(to, incarnation, what); });
      return;
    }
    heard_by_ = to;
    what(process);
  }

  // The one fault of a systematic run. True: the message is gone.
  bool Aim(size_t from, size_t to, int64_t* delay_ns, bool* twice) {
    Say(absl::StrCat(FleetFaultName(options_.fault), " at a message from ", Name(from), " to ",
                     Name(to)));
    ++report_.operations;
    Process* receiver = places_[to].process.get();
    switch (options_.fault) {
      case FleetFault::kNone:
        return false;
      case FleetFault::kKillReceiver:
        At(now_, [=] { Kill(to); });  // Not inside its own call.
        return true;
      case FleetFault::kKillSender:
        At(now_, [=] { Kill(from); });
        return false;
      case FleetFault::kLose:
        return true;
      case FleetFault::kDelay:
        *delay_ns += 1500 * kMs;
        return false;
      case FleetFault::kDuplicate:
        *twice = true;
        *delay_ns += 300 * kMs;
        return false;
      case FleetFault::kPause:
        receiver->paused_until = now_ + 2600 * kMs;
        for (auto& due : calls_due_) due.second = std::max(due.second, now_ + 2700 * kMs);
        return false;
      case FleetFault::kCut:
        receiver->cut_until = now_ + 2600 * kMs;
        return true;
      case FleetFault::kCutDecider:
        decider_cut_until_ = now_ + 3000 * kMs;
        return false;
    }
    return false;
  }

  void AskLeaders(size_t from, const Question& question) {
    if (question.member) judge_.OnTold(question, Name(from), now_);
    for (size_t to = 0; to < places_.size(); ++to) {
      if (places_[to].role != Role::kLeader) continue;
      Send(from, to, [question](Process* leader) {
        leader->leader->OnQuestion(question, leader->clock->NowNs());
      });
    }
  }

  void Deliver(size_t from, const Answer& answer) {
    if (answer.prepare.number != 0) OnPrepare(from, answer.prepare.number);
    const int64_t sent_ns = now_;
    for (size_t to = 0; to < places_.size(); ++to) {
      Process* process = places_[to].process.get();
      if (process == nullptr || process->incarnation != answer.incarnation) continue;
      Send(from, to, [this, to, answer, sent_ns](Process* receiver) {
        report_.based += answer.slice.base.has_value();
        if (receiver->owner) receiver->owner->OnAnswer(answer, receiver->clock->NowNs());
        if (receiver->member) {
          if (answer.permit) {
            judge_.OnPermit(answer.incarnation, answer.question);
            watch_.OnPermit(answer.incarnation, sent_ns, now_);
          }
          receiver->member->OnAnswer(answer, receiver->clock->NowNs());
          judge_.OnApplied(receiver->member->log(), receiver->member->state(), Name(to));
        }
      });
    }
  }

  void OnPrepare(size_t leader, uint64_t number) {
    watch_.OnPrepare(number, now_);
    if (options_.kill_leader_at_ns == 0 || now_ < options_.kill_leader_at_ns || leader_killed_) {
      return;
    }
    leader_killed_ = true;
    At(now_, [=] {  // When it has told everybody.
      watch_.OnTrouble(now_, now_);
      Kill(leader);
    });
  }

  void CutDecider(int64_t lasts) {
    decider_cut_until_ = now_ + lasts;
    watch_.OnTrouble(now_, decider_cut_until_);
  }

  // The call and its answer may each be lost. In a worker of its own the decider has a clock of its
  // own.
  void CallDecider(size_t from, uint64_t call,
                   std::function<DeciderAnswer(LogStore*, int64_t)> ask) {
    const auto answer = [=](LogStore* store, const Clock& clock, size_t via) {
      DeciderAnswer said = ask(store, clock.NowNs());
      said.call = call;
      Send(via, from,
           [said](Process* leader) { leader->leader->OnDecider(said, leader->clock->NowNs()); });
    };
    if (options_.worker_decides) {
      Send(from, 0, [=](Process* host) {
        if (host->store) answer(host->store.get(), *host->clock, 0);
      });
      return;
    }
    Send(from, from, [=](Process*) {
      if (decider_cut_until_ <= now_) answer(store_.get(), *store_clock_, from);
    });
  }

  DeciderAnswer Appended(LogStore* store, uint64_t length, uint64_t lease, const LogEntry& entry) {
    const DeciderAnswer answer = store->Append(length, lease, entry);
    if (answer.outcome == DeciderOutcome::kDone) {
      Say(absl::StrCat("  chosen: ", EntryKindName(entry.kind), " ",
                       entry.kind == EntryKind::kOwners ? entry.term : entry.version.number, " ",
                       absl::StrJoin(entry.incarnations, ",", Short)));
      judge_.OnChosen(store->life(), entry, Open(), now_);
      if (entry.kind == EntryKind::kActive) JudgeVotes(store->log().state(), entry.version);
    }
    return answer;
  }

  // Every member that lives has it whole.
  void JudgeVotes(const LogState& state, const WeightVersion& version) {
    for (size_t at = 0; at < places_.size(); ++at) {
      const Process* process = places_[at].process.get();
      if (process != nullptr && process->member && state.HasMember(process->incarnation) &&
          process->beside != version) {
        judge_.Break("AllVoted", absl::StrCat(Name(at), " does not have ", version.number));
      }
    }
  }

  // ---- Engines and trainers ----

  int64_t EngineTakes(int64_t least_ms, int64_t most_ms) {
    return options_.engines_at_once ? 0 : network_.Between(least_ms, most_ms) * kMs;
  }

  void Stage(size_t at, const LogEntry& version) {
    ++report_.operations;
    Process* process = places_[at].process.get();
    const uint64_t incarnation = process->incarnation;
    judge_.OnStage(process->member->log(), version, Name(at));
    const bool whole = !(options_.random_faults && Faulty() && network_.Chance(60'000));
    report_.refused_votes += !whole;
    const WeightVersion what = version.version;
    process->beside = {};
    int64_t takes = EngineTakes(1, 400);
    if (options_.random_faults && network_.Chance(100'000))
      takes += network_.Between(0, 3000) * kMs;
    if (options_.slow_member && places_[at].index == 0 && what.number % 2 == 0 && Faulty()) {
      takes = 3000 * kMs;
    }
    At(now_ + takes, [=] {
      Process* still = Living(at, incarnation);
      if (still == nullptr) return;
      if (whole && still->member->stage() == what) still->beside = what;
      still->member->Staged(what, whole, still->clock->NowNs());
    });
  }

  void Hold(size_t at, const WeightVersion& version) {
    ++report_.held;
    Process* process = places_[at].process.get();
    const uint64_t incarnation = process->incarnation;
    int64_t takes = EngineTakes(0, 60);
    if (options_.random_faults && network_.Chance(150'000))
      takes += network_.Between(0, 2000) * kMs;
    At(now_ + takes, [=] {
      if (Process* still = Living(at, incarnation)) {
        still->member->Quiet(version, still->clock->NowNs());
      }
    });
  }

  void Switch(size_t at, const WeightVersion& version) {
    ++report_.operations;
    Process* process = places_[at].process.get();
    const uint64_t incarnation = process->incarnation;
    if (process->beside != version) {
      judge_.Break("StagedBeforeTouched", absl::StrCat(Name(at), " switches to ", version.number,
                                                       " without the whole of it"));
    }
    process->touched = true;
    At(now_ + EngineTakes(0, 40), [=] {
      Process* still = Living(at, incarnation);
      if (still == nullptr) return;
      watch_.OnSwitched(incarnation, version.number, now_);
      still->memory = version;
      still->beside = {};
      still->touched = false;
      still->member->Switched(version, still->clock->NowNs());
    });
  }

  WeightRoot DigestOf(const Process& owner, uint64_t number) const {
    WeightRoot digest = {};
    for (int i = 0; i < 8; ++i) digest[i] = static_cast<uint8_t>(owner.incarnation >> (8 * i));
    digest[8] = static_cast<uint8_t>(number);
    digest[9] = static_cast<uint8_t>(number >> 8);
    return digest;
  }

  size_t MostOpen() const {
    if (now_ < faults_end_ns_) return options_.most_open;
    return options_.fickle ? kMaxOpenVersions + 1 : 1;
  }
  static bool Gone(const LogState& state, uint64_t number) {
    return number <= state.floor && state.FindOpen(number) == nullptr &&
           state.active.version.number != number;
  }

  // Every owner seals the next number; the first activates what is sealed.
  void Train() {
    for (size_t at = 0; at < places_.size(); ++at) {
      Process* process = places_[at].process.get();
      if (process == nullptr || !process->owner || process->paused_until > now_) continue;
      if (process->owner->superseded()) {
        // Whoever starts jobs ends what it has replaced, in time.
        if (process->superseded_ns == 0) process->superseded_ns = now_;
        if (now_ < process->superseded_ns + 2000 * kMs) continue;
        Say(absl::StrCat(Name(at), " is ended, since another has its rank"));
        places_[at].retired = true;
        places_[at].process.reset();
        continue;
      }
      if (!process->owner->in_term()) continue;
      const LogState& state = process->owner->state();
      const bool publish = now_ < faults_end_ns_ || now_ > last_publish_ns_;
      if (publish && now_ >= process->next_seal_ns && !process->sealing &&
          state.open.size() < MostOpen() &&
          (now_ < faults_end_ns_ || last_sealed_ == 0 ||
           (options_.fickle && Gone(state, last_sealed_)))) {
        Seal(at, process, state.floor + 1);
      }
      if (process->index == 0 && !process->activating && !state.open.empty()) {
        const WeightVersion& newest = state.open.back().version;
        if (!wished_.insert(newest.birth).second && options_.fickle) continue;
        Activate(at, process, newest.number);
      }
    }
  }

  void Seal(size_t at, Process* process, uint64_t number) {
    const WeightRoot digest = DigestOf(*process, number);
    const uint64_t incarnation = process->incarnation;
    const uint64_t call = ++calls_;
    open_calls_.insert(call);
    ++report_.operations;
    process->sealing = true;
    process->next_seal_ns = now_ + options_.seal_every_ns;
    judge_.OnReady(incarnation, process->owner->state().term, number, digest);
    const int64_t deadline = process->clock->NowNs() + 4000 * kMs;
    calls_due_[call] = now_ + 4100 * kMs;
    process->owner->Seal(number, digest, deadline, [=](absl::StatusOr<LogEntry> sealed) {
      Ended(call);
      if (Process* still = Living(at, incarnation)) still->sealing = false;
      if (sealed.ok() && sealed->version.number != number) {
        judge_.Break("OneBirth", "a seal ends with another number");
      }
      if (now_ > last_publish_ns_ && sealed.ok()) last_sealed_ = number;
    });
  }

  void Activate(size_t at, Process* process, uint64_t number) {
    const uint64_t incarnation = process->incarnation;
    const uint64_t call = ++calls_;
    open_calls_.insert(call);
    ++report_.operations;
    process->activating = true;
    const ActivateMode mode = options_.slow_member || random_.Chance(600'000)
                                  ? ActivateMode::kBarrier
                                  : ActivateMode::kRolling;
    int64_t timeout = 6000 * kMs;
    if (options_.random_faults && Faulty()) timeout = random_.Between(300, 6000) * kMs;
    if (options_.slow_member && Faulty()) timeout = 700 * kMs;
    calls_due_[call] = now_ + timeout + 150 * kMs;
    process->owner->Activate(number, mode, process->clock->NowNs() + timeout,
                             [=](const absl::Status& status) {
                               Ended(call);
                               Say(absl::StrCat("activation of ", number, ": ", status.ToString()));
                               if (Process* still = Living(at, incarnation))
                                 still->activating = false;
                             });
  }

  void Ended(uint64_t call) {
    if (open_calls_.erase(call) == 0) judge_.Break("EndsOnce", "a call ended twice");
    calls_due_.erase(call);
  }

  // ---- What goes wrong ----

  void ScheduleChaos() {
    loss_per_million_ = static_cast<uint32_t>(chaos_.Below(3) * 30'000);
    int64_t at = 200 * kMs;
    while (at < faults_end_ns_ - 200 * kMs) {
      at += chaos_.Between(50, 1500) * kMs;
      const size_t victim = chaos_.Below(places_.size());
      const uint64_t kind = chaos_.Below(14);
      const int64_t lasts = chaos_.Between(100, 4000) * kMs;
      At(at, [=] { Trouble(victim, kind, lasts); });
    }
    At(faults_end_ns_, [this] {
      for (Place& place : places_) {
        if (!place.process) continue;
        place.process->cut_until = place.process->paused_until = place.process->slow_until = now_;
      }
      cut_links_.clear();
      decider_cut_until_ = now_;
    });
  }

  void Trouble(size_t victim, uint64_t kind, int64_t lasts) {
    if (!Faulty()) return;
    const int64_t until = std::min(now_ + lasts, faults_end_ns_);
    if (kind < 4) {
      Kill(victim);
      return;
    }
    ++report_.operations;
    Process* process = places_[victim].process.get();
    if (kind == 4) {
      decider_cut_until_ = until;
      Say("the decider is cut off");
    } else if (kind < 8) {
      const size_t leader = chaos_.Below(static_cast<uint64_t>(options_.leaders));
      cut_links_[{std::min(victim, leader), std::max(victim, leader)}] = until;
      Say(absl::StrCat(Name(victim), " and ", Name(leader), " do not hear each other"));
    } else if (process != nullptr && kind == 8 && places_[victim].role == Role::kOwner) {
      Replace(victim, until);
    } else if (process != nullptr) {
      // Whoever stands still ends its calls when it goes on.
      if (kind <= 10) {
        for (auto& due : calls_due_) due.second = std::max(due.second, until + 100 * kMs);
      }
      int64_t& ends = kind <= 10   ? process->paused_until
                      : kind == 11 ? process->cut_until
                                   : process->slow_until;
      ends = std::max(ends, until);  // What was put off until then stays put off.
      Say(absl::StrCat(Name(victim), kind <= 10   ? " is paused"
                                     : kind == 11 ? " is cut off"
                                                  : " is slow to reach"));
    }
  }

  // Another process gets its rank, while it stands still or is cut off; then it comes back.
  void Replace(size_t at, int64_t until) {
    Process* process = places_[at].process.get();
    if (places_.size() > 24) return;
    Say(absl::StrCat(Name(at), " is replaced"));
    int64_t& ends = chaos_.Chance(500'000) ? process->paused_until : process->cut_until;
    ends = std::max(ends, until);
    for (auto& due : calls_due_) due.second = std::max(due.second, until + 100 * kMs);
    places_.push_back({Role::kOwner, places_[at].index, nullptr, false});
    Start(places_.size() - 1);
  }

  // ---- What is looked at ----

  // What a member would serve now, if a thread of its asked, is added where it has a permit.
  void AddOpen(size_t at, std::vector<OpenMember>* open) const {
    const Process* process = places_[at].process.get();
    if (process == nullptr || !process->member) return;
    const Serving serving = process->permit->Serve(*process->clock);
    if (!serving.confirmed) return;
    open->push_back({Name(at), process->incarnation, process->member->log(), serving.number,
                     process->memory, process->touched, &process->member->state()});
  }

  std::vector<OpenMember> Open() const {
    std::vector<OpenMember> open;
    for (size_t at = 0; at < places_.size(); ++at) AddOpen(at, &open);
    return open;
  }

  void Look() {
    if (now_ < next_judged_ns_) {
      std::vector<OpenMember> open;
      if (heard_by_ < places_.size()) AddOpen(heard_by_, &open);
      judge_.Look(open, now_);
      return;
    }
    next_judged_ns_ = now_ + options_.judge_every_ns;
    const std::vector<OpenMember> open = Open();
    judge_.Look(open, now_);
    if (!open.empty()) watch_.OnConfirmed(now_);
    if (watch_.troubled(now_)) CountUnconfirmed();
    for (const Place& place : places_) {
      if (place.process && place.process->leader) judge_.OnPeers(place.process->leader->peers());
    }
    for (const auto& [call, due] : calls_due_) {
      if (now_ > due + 1000 * kMs) {
        judge_.Break("EndsOnce", absl::StrCat("call ", call, " is late"));
        return;
      }
    }
  }

  void CountUnconfirmed() {
    for (const Place& place : places_) {
      if (place.process == nullptr || !place.process->member) continue;
      const Serving serving = place.process->permit->Serve(*place.process->clock);
      if (serving.number != 0 && !serving.confirmed) {
        watch_.OnUnconfirmed(place.process->incarnation);
      }
    }
  }

  void JudgeEnd() {
    const LogStore* store =
        options_.worker_decides ? places_[0].process->store.get() : store_.get();
    const LogState& state = store->log().state();
    if (!state.open.empty()) {
      judge_.Break("Decides",
                   absl::StrCat("version ", state.open[0].version.number, " is undecided"));
    }
    if (last_sealed_ == 0 || state.active.version.number < last_sealed_) {
      judge_.Break("Decides", absl::StrCat("the last version sealed is ", last_sealed_,
                                           ", and active is ", state.active.version.number));
    }
    for (size_t at = 0; at < places_.size(); ++at) {
      const Process* process = places_[at].process.get();
      if (process == nullptr || !process->member) continue;
      const GroupMember& member = *process->member;
      Say(absl::StrCat(Name(at), member.state().HasMember(process->incarnation) ? "" : " (out)",
                       " has ", member.serving().number, ", length ", member.state().length, " of ",
                       state.length, ", its stage of ", member.stage().number, " ",
                       StageStateName(member.stage_state())));
    }
    const std::vector<OpenMember> open = Open();
    if (open.size() != static_cast<size_t>(options_.members)) {
      judge_.Break("Decides",
                   absl::StrCat(open.size(), " of ", options_.members, " members serve"));
    }
  }

  const FleetOptions options_;
  SimRandom random_, network_, chaos_;
  const GroupTimes times_;
  const int64_t faults_end_ns_, last_publish_ns_;
  FleetReport report_;
  FleetJudge judge_;
  FleetWatch watch_;
  int64_t now_ = 0;
  size_t heard_by_ = 0;  // Whose message an event is. All places: nobody's.
  int64_t next_judged_ns_ = 0;
  bool leader_killed_ = false;
  uint64_t sequence_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> queue_;
  std::vector<Place> places_;
  std::unique_ptr<DriftingClock> store_clock_;
  std::unique_ptr<LogStore> store_;
  int64_t decider_cut_until_ = 0;
  std::map<std::pair<size_t, size_t>, int64_t>
      cut_links_;  // A leader's with itself: to the decider.
  uint32_t loss_per_million_ = 0;
  AllCovers covers_{&random_};
  uint64_t calls_ = 0;
  std::set<uint64_t> open_calls_;
  std::map<uint64_t, int64_t> calls_due_;
  uint64_t last_sealed_ = 0;
  std::set<uint64_t> wished_;  // Births.
};

}  // namespace

const char* FleetFaultName(FleetFault fault) {
  constexpr const char* kNames[] = {"nothing",
                                    "the receiver's death",
                                    "the sender's death",
                                    "a loss",
                                    "a delay",
                                    "a duplicate",
                                    "a pause",
                                    "a cut",
                                    "a cut decider"};
  return kNames[static_cast<int>(fault)];
}

FleetReport RunFleet(const FleetOptions& options) { return Fleet(options).Run(); }

FleetOptions FleetOfSeed(uint64_t seed) {
  SimRandom random(seed ^ 0x5eed);
  FleetOptions options;
  options.seed = seed;
  options.members = static_cast<int>(random.Between(1, 5));
  options.owners = static_cast<int>(random.Between(1, 4));
  options.worker_decides = random.Chance(300'000);
  options.leaders = options.worker_decides ? 1 : static_cast<int>(random.Between(1, 3));
  options.random_faults = true;
  options.most_open = random.Between(1, 3);
  options.fickle = random.Chance(500'000);
  if (random.Chance(500'000)) options.kept_entries = random.Between(2, 6);
  options.first_leads = options.worker_decides && random.Chance(500'000);
  return options;
}

}  // namespace tryst
