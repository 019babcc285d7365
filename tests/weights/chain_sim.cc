#include "tests/weights/chain_sim.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "verbs/sim/sim_random.h"
#include "weights/chain.h"
#include "weights/route.h"
#include "weights/shelf.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr size_t kAsksAtOnce = 8;
constexpr size_t kKeptByOwners = 2;
constexpr int64_t kLatencyNs = 30'000;
constexpr int64_t kTryNs = 2'000 * kMs;        // With somebody else to ask.
constexpr int64_t kPatienceNs = 10'000 * kMs;  // Without.

struct Wire {
  int64_t out_free = 0, in_free = 0;
};

struct Owner {
  Wire wire;
  bool dead = false;
  std::deque<WeightVersion> holds;
  PartChain chain;
};

// One fetch of one part.
struct Fetching {
  Fetching(const PartName& part, std::vector<uint32_t> owners, size_t first)
      : name(part), route(std::move(owners), first) {}
  PartName name;
  PartRoute route;
  bool expected = false;
  uint64_t attempt = 0;  // An answer to another one is late.
};

struct Member {
  int index = 0;
  uint64_t life = 0;
  bool up = true;
  bool lies = false;
  bool holds = true;
  int64_t still_until = 0;  // It neither hears nor says anything.
  Wire wire;
  std::unique_ptr<PartShelf> shelf;
  WeightVersion active, staging, has;
  std::set<uint64_t> over;  // Versions that it knows to be over.
  std::deque<std::unique_ptr<Fetching>> left;
  std::vector<std::unique_ptr<Fetching>> out;
  std::set<uint32_t> landed;
  // Who waits here for what is coming: the part, and what is to be done when that is known.
  std::vector<std::pair<PartName, std::function<void()>>> waiting;
};

class World {
 public:
  explicit World(const ChainOptions& options)
      : options_(options), random_(options.seed), owners_(options.owners) {
    for (int i = 0; i < options.members; ++i) {
      members_.push_back(std::make_unique<Member>());
      members_[i]->index = i;
      members_[i]->holds = options.all_hold || i % 3 != 2;
      NewLife(members_[i].get());
    }
  }

  ChainReport Run() {
    Seal(1);
    if (options_.random_faults) At(0, [this] { Trouble(); });
    for (const int member : options_.dying) {
      At(options_.part_ns * options_.parts / 2, [=] { Kill(member); });
    }
    while (!queue_.empty() && report_.violations.size() < 5) {
      auto first = queue_.begin();
      now_ = first->first.first;
      const std::function<void()> what = std::move(first->second);
      queue_.erase(first);
      ++report_.events;
      what();
      report_.trace_hash = report_.trace_hash * 1099511628211u + static_cast<uint64_t>(now_);
      if (now_ > 3'600'000 * kMs) break;
    }
    JudgeEnd();
    for (const auto& [part, count] : by_owners_) {
      report_.most_by_owners = std::max(report_.most_by_owners, count);
    }
    for (const auto& [part, count] : by_members_) {
      report_.most_by_member = std::max(report_.most_by_member, count);
    }
    report_.bound_ns =
        options_.part_ns * options_.parts * options_.owners / options_.slices / options_.replicas;
    return report_;
  }

 private:
  using PartKey = std::pair<uint64_t, uint32_t>;  // Version, part.
  using Life = std::pair<int, uint64_t>;          // A member, and which life.

  void At(int64_t at, std::function<void()> what) {
    queue_.emplace(std::make_pair(std::max(at, now_), ++sequence_), std::move(what));
  }
  void Break(const std::string& promise, const std::string& how) {
    report_.violations.push_back(absl::StrCat(promise, ": ", how));
  }
  void Say(const std::string& what) const {
    if (options_.verbose) printf("%9.3f ms  %s\n", static_cast<double>(now_) / kMs, what.c_str());
  }
  static std::string WorkerOf(int member) { return absl::StrCat("m", member); }
  static PartName Name(const WeightVersion& version, uint32_t part) {
    return {version, part, {{0}, {1}}};
  }
  static PartKey KeyOf(const PartName& part) { return {part.version.number, part.tensor}; }
  uint64_t BytesOfAll() const {
    return static_cast<uint64_t>(options_.parts) * options_.owners / options_.slices;
  }
  // What the bytes of a part are. A liar's are others.
  static uint64_t Content(const PartName& part) {
    return part.version.birth * 1'000'003 + part.tensor;
  }
  static Digest DigestOfContent(uint64_t content) { return DigestOf(&content, sizeof(content)); }
  // Groups of `replicas` owners have the same parts, which count through all groups.
  std::vector<uint32_t> OwnersOf(uint32_t part) const {
    const uint32_t group = part / options_.parts;
    std::vector<uint32_t> owners;
    for (int i = 0; i < options_.replicas; ++i) {
      owners.push_back(group * options_.replicas + i);
    }
    return owners;
  }

  // ---- Versions ----

  void Seal(uint64_t number) {
    const WeightVersion version{number, random_.Next() | 1};
    newest_ = version;
    sealed_ns_ = now_;
    Say(absl::StrCat("version ", number, " is sealed"));
    for (Owner& owner : owners_) {
      if (owner.dead) continue;
      owner.holds.push_back(version);
      if (owner.holds.size() <= kKeptByOwners) continue;
      owner.chain.Forget(owner.holds.front());
      owner.holds.pop_front();
    }
    for (const auto& member : members_) TellLog(member.get());
    At(now_ + 60'000 * kMs, [=] {
      if (newest_ == version && active_ != version) GiveUp();
    });
  }

  // Not all have it: the version is dropped, and the next one is sealed.
  void GiveUp() {
    Say(absl::StrCat("version ", newest_.number, " is dropped"));
    ++report_.dropped;
    over_.insert(newest_.number);
    Next();
  }

  void Next() {
    const uint64_t next = newest_.number + 1;
    if (next <= static_cast<uint64_t>(options_.versions)) {
      At(now_ + random_.Between(1, 50) * kMs, [=] { Seal(next); });
      return;
    }
    for (const auto& member : members_) TellLog(member.get());
  }

  // It hears what the log says now, some time later.
  void TellLog(Member* member) {
    const WeightVersion active = active_, newest = newest_;
    const std::set<uint64_t> over = over_;
    const uint64_t life = member->life;
    At(now_ + random_.Between(100, 20'000) * 1000, [=] {
      if (member->life != life || !member->up) return;
      OnLog(member, active, newest, over);
    });
  }

  void OnLog(Member* member, const WeightVersion& active, const WeightVersion& newest,
             const std::set<uint64_t>& over) {
    if (newest.number < member->staging.number) return;
    member->over.insert(over.begin(), over.end());
    if (active.number >= member->active.number) member->active = active;
    std::vector<WeightVersion> open;
    if (newest != active && member->over.count(newest.number) == 0) open.push_back(newest);
    member->shelf->Allow(member->active, open);
    if (member->over.count(member->staging.number) > 0) GiveUpAll(member);
    EndWaiting(member);
    if (member->over.count(newest.number) == 0 && member->staging != newest) Stage(member, newest);
  }

  void Stage(Member* member, const WeightVersion& version) {
    GiveUpAll(member);
    member->staging = version;
    member->landed.clear();
    const uint32_t count = options_.parts * options_.owners / options_.replicas;
    const uint32_t slice = member->index % options_.slices;
    for (uint32_t part = 0; part < count; ++part) {
      const uint32_t group = part / options_.parts;
      if (group * options_.slices * options_.replicas / options_.owners != slice) continue;
      member->left.push_back(std::make_unique<Fetching>(Name(version, part), OwnersOf(part), part));
    }
    AskMore(member);
  }

  void GiveUpAll(Member* member) {
    for (const auto& one : member->out) {
      waits_for_.erase({KeyOf(one->name), member->index});
      if (one->expected) member->shelf->GiveUp(one->name);
    }
    for (const auto& one : member->left) {
      if (one->expected) member->shelf->GiveUp(one->name);
    }
    member->out.clear();
    member->left.clear();
    EndWaiting(member);
  }

  // ---- What a member asks ----

  void AskMore(Member* member) {
    while (!member->left.empty() && member->out.size() < kAsksAtOnce) {
      std::unique_ptr<Fetching> one = std::move(member->left.front());
      member->left.pop_front();
      Tensor bytes;
      if (member->shelf->Find(one->name, &bytes) == PartShelf::State::kHeld) {
        member->landed.insert(one->name.tensor);
        continue;
      }
      member->out.push_back(std::move(one));
      Ask(member, member->out.back().get());
    }
    if (member->left.empty() && member->out.empty()) Staged(member);
  }

  void Staged(Member* member) {
    if (member->has == member->staging) return;
    member->has = member->staging;
    Say(absl::StrCat("member ", member->index, " has version ", member->has.number));
    for (const auto& other : members_) {
      if (other->up && other->has != newest_) return;
    }
    if (active_ == newest_ || over_.count(newest_.number) > 0) return;
    if (report_.sync_ns == 0) report_.sync_ns = now_ - sealed_ns_;
    if (active_.number != 0) over_.insert(active_.number);
    active_ = newest_;
    for (const auto& other : members_) TellLog(other.get());
    Next();
  }

  Fetching* Find(Member* member, const PartName& name, uint64_t attempt) {
    for (const auto& one : member->out) {
      if (one->name.tensor == name.tensor && one->name.version == name.version &&
          one->attempt == attempt) {
        return one.get();
      }
    }
    return nullptr;
  }

  void Ask(Member* member, Fetching* one) {
    const PartName name = one->name;
    one->route.Avoid([](uint32_t) { return false; });
    if (!one->expected && member->holds) one->expected = member->shelf->Expect(name, 1);
    const uint64_t attempt = one->attempt = ++attempts_;
    const uint64_t life = member->life;
    const auto in_time = [=](auto what) {
      return [=] {
        if (member->life != life || !member->up) return;
        if (member->still_until > now_) {
          At(member->still_until, [=] {
            if (member->life == life && member->up && Find(member, name, attempt)) what();
          });
        } else if (Find(member, name, attempt) != nullptr) {
          what();
        }
      };
    };
    const int64_t patience = one->route.choices() > 1 ? kTryNs : kPatienceNs;
    At(now_ + patience, in_time([=] {
         ++report_.timeouts;
         if (!paused_)
           Break("EndsInTime", absl::StrCat("part ", name.tensor, " of member ", member->index,
                                            " waits for ever"));
         Fail(member, Find(member, name, attempt));
       }));
    if (one->route.referral().has_value()) {
      const Holder holder = one->route.referral()->holder;
      At(now_ + kLatencyNs, [=] { AskHolder(member, name, attempt, holder); });
      return;
    }
    if (!asked_.insert({KeyOf(name), life}).second) ++returns_[KeyOf(name)];
    const uint32_t owner = one->route.owner();
    const bool may_be_sent_on = one->route.may_be_sent_on();
    const Holder asker{WorkerOf(member->index), one->expected ? life : 0};
    At(now_ + kLatencyNs, [=] { AskOwner(member, name, attempt, owner, asker, may_be_sent_on); });
  }

  // The bytes come, or, without any, the end of the attempt.
  void Answer(Wire* from, Member* to, const PartName& name, uint64_t attempt, uint64_t content) {
    const uint64_t life = to->life;
    int64_t at = now_ + kLatencyNs;
    if (from != nullptr) {
      const int64_t begins = std::max(now_, from->out_free);
      from->out_free = begins + options_.part_ns;
      at = std::max(begins + kLatencyNs, to->wire.in_free) + options_.part_ns;
      to->wire.in_free = at;
    }
    const bool comes = from != nullptr;
    At(at, [=] { Arrive(to, life, name, attempt, comes, content); });
  }

  void Arrive(Member* to, uint64_t life, const PartName& name, uint64_t attempt, bool comes,
              uint64_t content) {
    if (to->life != life || !to->up) return;
    if (to->still_until > now_) {
      At(to->still_until, [=] { Arrive(to, life, name, attempt, comes, content); });
      return;
    }
    Fetching* const one = Find(to, name, attempt);
    if (one == nullptr) return;
    // The digest of an owner's word, or of its list.
    if (!comes || DigestOfContent(content) != DigestOfContent(Content(name))) return Fail(to, one);
    if (one->expected)
      to->shelf->Put(name, Tensor::Adopt(&one_byte_, DType::kUint8, {1}, {}, [] {}).value());
    if (to->shelf->bytes() > 2 * BytesOfAll()) Break("BoundedMemory", "a shelf has too much");
    to->landed.insert(name.tensor);
    Remove(to, one);
    EndWaiting(to);
    AskMore(to);
  }

  void Remove(Member* member, const Fetching* one) {
    waits_for_.erase({KeyOf(one->name), member->index});
    const auto found = std::find_if(member->out.begin(), member->out.end(),
                                    [one](const auto& other) { return other.get() == one; });
    member->out.erase(found);
  }

  void Fail(Member* member, Fetching* one) {
    ++report_.returns;
    waits_for_.erase({KeyOf(one->name), member->index});
    if (one->route.Fail()) return Ask(member, one);
    // All of it begins again, as often as the leader is asked.
    const WeightVersion version = one->name.version;
    const uint64_t life = member->life;
    GiveUpAll(member);
    At(now_ + 300 * kMs, [=] {
      if (member->life == life && member->up && member->staging == version &&
          member->has != version && member->over.count(version.number) == 0) {
        Stage(member, version);
      }
    });
  }

  // ---- Who answers ----

  void AskOwner(Member* asker, const PartName& name, uint64_t attempt, uint32_t number,
                const Holder& as, bool may_be_sent_on) {
    Owner* const owner = &owners_[number];
    const bool holds =
        std::find(owner->holds.begin(), owner->holds.end(), name.version) != owner->holds.end();
    if (owner->dead || !holds) return Answer(nullptr, asker, name, attempt, 0);
    const auto to = owner->chain.Next(name, as, may_be_sent_on);
    if (!to.has_value()) {
      ++report_.sent_by_owners;
      const uint64_t sent = ++by_owners_[KeyOf(name)];
      unforced_[KeyOf(name)] += may_be_sent_on;
      if (options_.all_hold && !options_.random_faults && options_.dying.empty() && sent > 1) {
        Break("BytesOut", absl::StrCat("part ", name.tensor, " leaves its owners twice"));
      }
      return Answer(&owner->wire, asker, name, attempt, Content(name));
    }
    ++report_.referrals;
    const uint64_t life = asker->life;
    JudgeCircle(asker, name, *to);
    At(now_ + kLatencyNs, [=] {
      if (asker->life != life || !asker->up) return;
      Fetching* const one = Find(asker, name, attempt);
      if (one == nullptr) return;
      one->route.SendOn({*to, std::nullopt});
      Ask(asker, one);
    });
  }

  // Nobody waits for somebody who waits for it.
  void JudgeCircle(const Member* asker, const PartName& name, const Holder& to) {
    const PartKey part = KeyOf(name);
    Life at{MemberOf(to.worker), to.incarnation};
    waits_for_[{part, asker->index}] = at;
    for (int steps = 0; steps < options_.members; ++steps) {
      if (members_[at.first]->life != at.second) return;  // It has died, which is noticed.
      if (at.first == asker->index) {
        return Break("NoCircle", absl::StrCat("member ", at.first, " waits for itself"));
      }
      const auto next = waits_for_.find({part, at.first});
      if (next == waits_for_.end()) return;
      at = next->second;
    }
  }

  static int MemberOf(const std::string& worker) { return std::stoi(worker.substr(1)); }

  void AskHolder(Member* asker, const PartName& name, uint64_t attempt, const Holder& holder) {
    Member* const member = members_[MemberOf(holder.worker)].get();
    if (!member->up || member->life != holder.incarnation) {
      return Answer(nullptr, asker, name, attempt, 0);
    }
    if (member->still_until > now_) {
      At(member->still_until, [=] { AskHolder(asker, name, attempt, holder); });
      return;
    }
    Tensor bytes;
    switch (member->shelf->Find(name, &bytes)) {
      case PartShelf::State::kGone:
        report_.retired_asks += member->over.count(name.version.number);
        return Answer(nullptr, asker, name, attempt, 0);
      case PartShelf::State::kComing:
        member->waiting.emplace_back(name, [=] { AskHolder(asker, name, attempt, holder); });
        return;
      case PartShelf::State::kHeld:
        break;
    }
    if (member->over.count(name.version.number) > 0) {
      Break("NoneRetired", absl::StrCat("member ", member->index, " sends a part of version ",
                                        name.version.number, ", which is over"));
    }
    ++report_.sent_on;
    ++by_members_[{KeyOf(name), member->index}];
    report_.lies += member->lies;
    Answer(&member->wire, asker, name, attempt, Content(name) + (member->lies ? 1 : 0));
  }

  // Whoever waits for what has come, or does not come any more, is answered.
  void EndWaiting(Member* member) {
    std::vector<std::function<void()>> ended;
    auto& waiting = member->waiting;
    for (auto one = waiting.begin(); one != waiting.end();) {
      Tensor bytes;
      if (member->shelf->Find(one->first, &bytes) == PartShelf::State::kComing) {
        ++one;
        continue;
      }
      ended.push_back(std::move(one->second));
      one = waiting.erase(one);
    }
    for (auto& end : ended) end();
  }

  // ---- What goes wrong ----

  void NewLife(Member* member) {
    member->life = random_.Next() | 1;
    member->up = true;
    member->shelf = std::make_unique<PartShelf>(2 * BytesOfAll());
    member->active = member->staging = member->has = {};
  }

  void Kill(int index) {
    Member* const member = members_[index].get();
    if (!member->up) return;
    Say(absl::StrCat("member ", index, " dies"));
    ++report_.kills;
    member->up = false;
    member->left.clear();
    member->out.clear();
    auto waiting = std::move(member->waiting);
    member->waiting.clear();
    for (auto& one : waiting) one.second();
    for (auto one = waits_for_.begin(); one != waits_for_.end();) {
      const auto at = one++;
      if (at->first.second == index) waits_for_.erase(at);
    }
    if (!options_.come_back) return;
    At(now_ + random_.Between(5, 500) * kMs, [=] {
      NewLife(member);
      TellLog(member);
    });
  }

  void Trouble() {
    if (newest_.number >= static_cast<uint64_t>(options_.versions)) {
      for (const auto& member : members_) member->lies = false;
      return;
    }
    Member* const member = members_[random_.Below(members_.size())].get();
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2:
        Kill(member->index);
        break;
      case 3:
        if (!options_.pauses) break;
        member->still_until = now_ + random_.Between(10, 4000) * kMs;
        paused_ = true;
        break;
      case 4:
      case 5:
        member->lies = !member->lies;
        break;
      case 6:
        if (options_.replicas > 1 && dead_owners_++ == 0) {
          owners_[random_.Below(owners_.size())].dead = true;
        }
        break;
      default:
        if (random_.Chance(200'000) && active_ != newest_ && over_.count(newest_.number) == 0) {
          GiveUp();
          for (const auto& other : members_) TellLog(other.get());
        }
        break;
    }
    At(now_ + random_.Between(1, 40) * kMs, [this] { Trouble(); });
  }

  void JudgeEnd() {
    for (const auto& member : members_) {
      if (options_.come_back ? !member->up || member->has != newest_
                             : member->up && member->has != newest_) {
        Break("Fetches", absl::StrCat("member ", member->index, " has version ", member->has.number,
                                      " and not ", newest_.number));
      }
    }
    // An owner sends a part to the first that might have been sent on, and to one more for each
    // that came back from somebody.
    if (!options_.all_hold || options_.replicas > 1) return;
    for (const auto& [part, sent] : unforced_) {
      if (sent > 1 + returns_[part]) {
        Break("BytesOut", absl::StrCat("part ", part.second, " leaves its owner ", sent, " times"));
      }
    }
  }

  const ChainOptions options_;
  SimRandom random_;
  ChainReport report_;
  int64_t now_ = 0;
  uint64_t sequence_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> queue_;
  std::vector<Owner> owners_;
  std::vector<std::unique_ptr<Member>> members_;
  WeightVersion newest_, active_;
  int64_t sealed_ns_ = 0;
  std::set<uint64_t> over_;
  uint64_t attempts_ = 0;
  bool paused_ = false;
  int dead_owners_ = 0;
  char one_byte_ = 0;
  std::map<PartKey, uint64_t> by_owners_, unforced_, returns_;
  std::set<std::pair<PartKey, uint64_t>> asked_;  // By which life of a member.
  std::map<std::pair<PartKey, int>, uint64_t> by_members_;
  absl::flat_hash_map<std::pair<PartKey, int>, Life> waits_for_;
};

}  // namespace

ChainReport RunChain(const ChainOptions& options) { return World(options).Run(); }

ChainOptions ChainOfSeed(uint64_t seed) {
  SimRandom random(seed ^ 0xc4a1);
  ChainOptions options;
  options.seed = seed;
  options.members = static_cast<int>(random.Between(1, 9));
  options.replicas = random.Chance(300'000) ? 2 : 1;
  options.owners = static_cast<int>(random.Between(1, 3)) * options.replicas;
  options.parts = static_cast<int>(random.Between(1, 30));
  options.versions = static_cast<int>(random.Between(2, 5));
  options.all_hold = random.Chance(700'000);
  options.random_faults = true;
  options.pauses = random.Chance(500'000);
  return options;
}

}  // namespace tryst
