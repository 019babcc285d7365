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
#include "tests/doubles/sim_nic/sim_random.h"
#include "weights/chain.h"
#include "weights/held.h"
#include "weights/route.h"
#include "weights/shelf.h"

namespace tryst {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr size_t kAsksAtOnce = 8;
constexpr size_t kKeptByOwners = 2;
constexpr int64_t kElements = 4;  // Each box of an owner has so many.
constexpr uint32_t kOwn = UINT32_MAX;
constexpr int64_t kLatencyNs = 30'000;
constexpr int64_t kTryNs = 2'000 * kMs;        // With somebody else to ask.
constexpr int64_t kPatienceNs = 10'000 * kMs;  // Without.
constexpr int64_t kSilentNs = 2'000 * kMs;     // Then the leader names a member no more.

struct Wire {
  int64_t out_free = 0, in_free = 0;
};

struct Owner {
  Wire wire;
  bool dead = false;
  std::deque<WeightVersion> holds;
  PartChain chain;
};

// A part that is put together of others, since its owners are gone.
struct Rescued {
  PartName name;
  size_t missing = 0;
};

// One fetch of one part.
struct Fetching {
  Fetching(const PartName& part, std::vector<uint32_t> owners, size_t first)
      : name(part), route(std::move(owners), first) {}
  Fetching(const PartName& part, std::vector<Holder> holders, std::shared_ptr<Rescued> rescued)
      : name(part), route(std::move(holders)), of(std::move(rescued)) {}
  PartName name;
  PartRoute route;
  bool expected = false;
  uint64_t attempt = 0;         // An answer to another one is late.
  std::shared_ptr<Rescued> of;  // It is taken for this one.
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
  KnownHolders known;
  WeightVersion active, staging, has;
  std::set<uint64_t> over;  // Versions that it knows to be over.
  std::deque<std::unique_ptr<Fetching>> left;
  std::vector<std::unique_ptr<Fetching>> out;
  std::set<uint32_t> landed;
  std::vector<std::unique_ptr<Fetching>> orphans;  // No owner has these any more.
  std::set<std::string> bad;                       // Who sent wrong parts of this version.
  bool asked_leader = false;                       // In this fetch.
  // What the leader has heard that it has, in which life, and when it was last heard.
  std::set<uint64_t> said;
  uint64_t said_life = 0;
  int64_t died_ns = 0;
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
    SimRandom cuts(options.seed ^ 0xc075);
    for (int i = 0; i < options.members; ++i) {
      const int64_t begin = static_cast<int64_t>(cuts.Below(kElements));
      const int64_t extent = 1 + static_cast<int64_t>(cuts.Below(kElements - begin));
      cuts_.push_back(options.cuts ? Box{{begin}, {extent}} : WholeBox());
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
  static Box WholeBox() { return {{0}, {kElements}}; }
  static PartName Name(const WeightVersion& version, uint32_t part, const Box& box) {
    return {version, part, box};
  }
  static uint32_t CodeOf(const PartName& part) {
    return static_cast<uint32_t>(part.tensor * 64 + part.box.begin[0] * 8 + part.box.extent[0]);
  }
  static PartKey KeyOf(const PartName& part) { return {part.version.number, CodeOf(part)}; }
  uint64_t BytesOfAll() const {
    return static_cast<uint64_t>(options_.parts) * options_.owners / options_.slices;
  }
  // What the bytes of a part are. A liar's are others.
  static uint64_t Content(const PartName& part) {
    return part.version.birth * 1'000'003 + CodeOf(part);
  }
  // The word of its owner, unless it is a box.
  static std::optional<Digest> DigestOfOwner(const PartName& part) {
    if (part.box == WholeBox()) return std::nullopt;
    return DigestOfContent(Content(part));
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
      if (newest_ != version || active_ == version || !led_) return;
      if (owner_died_ns_ != 0) JudgeRescue();
      GiveUp();
    });
    if (options_.owner_dies && number == static_cast<uint64_t>(options_.versions)) {
      if (options_.first_dies) {
        // Some come late.
        for (int i = 0; i < 3; ++i) {
          const int member = static_cast<int>(random_.Below(members_.size()));
          At(now_ + random_.Between(0, 600) * kMs, [=] { Kill(member); });
        }
        At(now_ + random_.Between(1, 1200) * kMs, [=] { OwnerDies(); });
      } else {
        At(now_ + random_.Between(0, 3 * options_.parts) * options_.part_ns, [=] { OwnerDies(); });
      }
    }
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
    if (!led_) return;
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
    Allow(member, member->active, open);
    if (member->over.count(member->staging.number) > 0) GiveUpAll(member);
    EndWaiting(member);
    if (member->over.count(newest.number) == 0 && member->staging != newest) Stage(member, newest);
  }

  void Allow(Member* member, const WeightVersion& active, const std::vector<WeightVersion>& open) {
    member->shelf->Allow(active, open);
    member->known.KeepOnly(
        [&](const WeightVersion& version) { return member->shelf->Allows(version); });
  }

  // The first owner's next life has a log of its own, in which nothing is active. What a member is
  // fetching it goes on to fetch.
  void OnNewLog(Member* member) {
    const auto all = [](uint32_t, const Box&) { return true; };
    const size_t had = member->shelf->PartsOf(member->active, SIZE_MAX, all).size();
    Allow(member, {}, {});
    const size_t has = member->shelf->PartsOf(member->active, SIZE_MAX, all).size();
    if (has != had) {
      Break("ActiveStays", absl::StrCat("a new log takes ", had - has, " parts of what is active ",
                                        "from member ", member->index));
    }
    report_.kept += has;
    EndWaiting(member);
  }

  void Stage(Member* member, const WeightVersion& version) {
    GiveUpAll(member);
    if (member->staging != version) member->bad.clear();
    member->staging = version;
    member->landed.clear();
    member->asked_leader = false;
    for (const uint32_t part : PartsOf(*member)) {
      member->left.push_back(std::make_unique<Fetching>(Name(version, part, cuts_[member->index]),
                                                        OwnersOf(part), part));
    }
    AskMore(member);
  }

  // What it wants of a version.
  std::vector<uint32_t> PartsOf(const Member& member) const {
    const uint32_t count = options_.parts * options_.owners / options_.replicas;
    const uint32_t slice = member.index % options_.slices;
    std::vector<uint32_t> parts;
    for (uint32_t part = 0; part < count; ++part) {
      const uint32_t group = part / options_.parts;
      if (group * options_.slices * options_.replicas / options_.owners == slice) {
        parts.push_back(part);
      }
    }
    return parts;
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
    member->orphans.clear();
    EndWaiting(member);
  }

  // ---- What a member asks ----

  void AskMore(Member* member) {
    while (!member->left.empty() && member->out.size() < kAsksAtOnce) {
      std::unique_ptr<Fetching> one = std::move(member->left.front());
      member->left.pop_front();
      Tensor bytes;
      if (one->of == nullptr && member->shelf->Find(one->name, &bytes) == PartShelf::State::kHeld) {
        member->landed.insert(one->name.tensor);
        continue;
      }
      member->out.push_back(std::move(one));
      Ask(member, member->out.back().get());
    }
    if (!member->left.empty() || !member->out.empty()) return;
    if (member->orphans.empty()) return Staged(member);
    AskLeader(member);
  }

  // Which members stand in for the owners that are gone.
  void AskLeader(Member* member) {
    if (std::exchange(member->asked_leader, true)) return BeginAgain(member);
    const uint64_t life = member->life;
    const WeightVersion version = member->staging;
    // There and back, and the same to each of whom the leader names.
    At(now_ + 4 * kLatencyNs, [=] {
      if (member->life == life && member->up && member->staging == version &&
          member->over.count(version.number) == 0) {
        Rescue(member);
      }
    });
  }

  std::vector<Holder> HoldersOf(const WeightVersion& version, Member* asker) {
    std::vector<Holder> holders;
    if (!led_) {
      for (const Holder& holder : HeardOf(version, *asker)) {
        asker->known.Add(version, holder, /*of_itself=*/false);
      }
      for (const Holder& holder : asker->known.Of(version)) {
        if (holder.worker != WorkerOf(asker->index)) holders.push_back(holder);
      }
      return holders;
    }
    for (size_t i = 1; i < members_.size(); ++i) {
      const Member& other = *members_[(asker->index + i) % members_.size()];
      const bool lives = other.up && other.life == other.said_life;
      if ((lives || now_ < other.died_ns + kSilentNs) && other.said.count(version.number) > 0) {
        holders.push_back({WorkerOf(other.index), other.said_life});
        asker->known.Add(version, holders.back(), /*of_itself=*/true);
      }
    }
    return holders;
  }

  // What owners say, and members of whom it has heard itself.
  std::vector<Holder> HeardOf(const WeightVersion& version, const Member& asker) const {
    std::vector<Holder> heard;
    const auto add = [&](const std::vector<Holder>& more) {
      heard.insert(heard.end(), more.begin(), more.end());
    };
    for (const Owner& owner : owners_) {
      if (!owner.dead) add(owner.chain.HoldersOf(version));
    }
    size_t asked = 0;
    for (const Holder& holder : asker.known.Of(version)) {
      const Member& other = *members_[MemberOf(holder.worker)];
      if (other.index == asker.index || asked++ == kAsksAtOnce) continue;
      if (other.up && other.life == holder.incarnation) add(other.known.Of(version));
    }
    return heard;
  }

  void Rescue(Member* member) {
    const std::vector<Holder> holders = HoldersOf(member->staging, member);
    auto orphans = std::move(member->orphans);
    member->orphans.clear();
    for (auto& orphan : orphans) {
      BoxCover cover(WholeBox());
      AddParts(*member, orphan->name.tensor, kOwn, &cover);
      for (uint32_t i = 0; i < holders.size(); ++i) {
        const Member& other = *members_[MemberOf(holders[i].worker)];
        if (other.up && other.life == holders[i].incarnation &&
            member->bad.count(holders[i].worker) == 0) {
          AddParts(other, orphan->name.tensor, i, &cover);
        }
      }
      const auto anybody = [](uint32_t) { return true; };
      auto chosen = cover.Choose(anybody);
      if (!chosen.has_value()) {
        chosen = cover.Choose(orphan->name.box, anybody);
        report_.by_parts += chosen.has_value();
      }
      if (!chosen.has_value()) return BeginAgain(member);
      const auto rescued = std::make_shared<Rescued>(Rescued{orphan->name, 0});
      for (const BoxCover::Part& taken : *chosen) {
        std::vector<Holder> having;
        bool own = false;
        for (const uint32_t i : taken.holders) {
          own = own || i == kOwn;
          if (i != kOwn) having.push_back(holders[i]);
        }
        if (own) continue;
        ++rescued->missing;
        PartName name = orphan->name;
        name.box = taken.box;
        member->left.push_back(std::make_unique<Fetching>(name, std::move(having), rescued));
      }
      if (rescued->missing == 0) Put(member, rescued->name);
    }
    AskMore(member);
  }

  void AddParts(const Member& other, uint32_t part, uint32_t holder, BoxCover* cover) const {
    for (const HeldPart& held : other.shelf->PartsOf(
             newest_, SIZE_MAX, [part](uint32_t tensor, const Box&) { return tensor == part; })) {
      cover->Add(held.box, holder, held.digest);
    }
  }

  // The part is there, and perhaps for others.
  void Put(Member* member, const PartName& name) {
    member->landed.insert(name.tensor);
    if (!member->holds || !member->shelf->Expect(name, 1)) return;
    member->shelf->Put(name, OneByte(), DigestOfOwner(name));
    SayHolds(member, name.version);
  }
  Tensor OneByte() {
    return *Tensor::Adopt(&one_byte_, DType::kUint8, {1}, {}, [] {});
  }

  void Staged(Member* member) {
    if (member->landed.size() != PartsOf(*member).size()) {
      Break("WholeStage", absl::StrCat("member ", member->index, " has staged ",
                                       member->landed.size(), " parts alone"));
    }
    if (member->has == member->staging) return;
    member->has = member->staging;
    Say(absl::StrCat("member ", member->index, " has version ", member->has.number));
    for (const auto& other : members_) {
      if (other->up && other->has != newest_) return;
    }
    if (active_ == newest_ || over_.count(newest_.number) > 0) return;
    if (!led_) return;
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
      const Holder asker{WorkerOf(member->index), one->expected ? life : 0};
      At(now_ + kLatencyNs, [=] {
        Member* const asked = members_[MemberOf(holder.worker)].get();
        const bool hears = asked->up && asked->life == holder.incarnation;
        if (hears && asked->shelf->Allows(name.version)) {
          asked->known.Add(name.version, asker, /*of_itself=*/true);
        }
        AskHolder(member, name, attempt, holder);
      });
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
    const bool right = DigestOfContent(content) == DigestOfContent(Content(name));
    if (comes && !right && one->of != nullptr) to->bad.insert(one->route.referral()->holder.worker);
    if (!comes || !right) return Fail(to, one);
    report_.rescued += one->route.owners().empty();
    report_.unled += one->route.owners().empty() && !led_;
    const std::shared_ptr<Rescued> of = one->of;
    if (of != nullptr) {
      if (--of->missing == 0) Put(to, of->name);
      Remove(to, one);
      EndWaiting(to);
      return AskMore(to);
    }
    if (one->expected) {
      to->shelf->Put(name, OneByte(), DigestOfOwner(name));
      SayHolds(to, name.version);
    }
    if (to->shelf->bytes() > 2 * BytesOfAll()) Break("BoundedMemory", "a shelf has too much");
    to->landed.insert(name.tensor);
    Remove(to, one);
    EndWaiting(to);
    AskMore(to);
  }

  // Its next question to the leader says what it has for others.
  void SayHolds(Member* member, const WeightVersion& version) {
    const uint64_t life = member->life;
    At(now_ + random_.Between(0, 333) * kMs, [=] {
      if (member->life != life || !member->up) return;
      if (std::exchange(member->said_life, life) != life) member->said.clear();
      member->said.insert(version.number);
    });
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
    if (one->route.owners().empty()) return BeginAgain(member);
    // Whoever waits for it here would wait for whoever has it after all, which may be himself.
    if (one->expected) member->shelf->GiveUp(one->name);
    one->expected = false;
    const auto found = std::find_if(member->out.begin(), member->out.end(),
                                    [one](const auto& other) { return other.get() == one; });
    member->orphans.push_back(std::move(*found));
    member->out.erase(found);
    EndWaiting(member);
    AskMore(member);
  }

  // All of it, as often as the leader is asked.
  void BeginAgain(Member* member) {
    const WeightVersion version = member->staging;
    const uint64_t life = member->life;
    GiveUpAll(member);
    if (owner_died_ns_ != 0 && now_ > owner_died_ns_ + 90'000 * kMs) return;
    // Where boxes are cut, more is out of reach, and is asked for all the while.
    At(now_ + (options_.cuts ? 2000 : 300) * kMs, [=] {
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
      // Nobody can be sent on to who has it for himself alone.
      unforced_[KeyOf(name)] += may_be_sent_on && as.incarnation != 0;
      if (options_.all_hold && !options_.random_faults && !options_.owner_dies &&
          options_.dying.empty() && sent > 1) {
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
      asker->known.Add(name.version, *to, /*of_itself=*/false);
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
      // Where nothing is to come, as where another log has begun, nobody is made to wait.
      Tensor bytes;
      if (members_[at.first]->shelf->Find(name, &bytes) != PartShelf::State::kComing) return;
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
    member->known = {};
    member->active = member->staging = member->has = {};
  }

  void Kill(int index) {
    Member* const member = members_[index].get();
    if (!member->up) return;
    Say(absl::StrCat("member ", index, " dies"));
    ++report_.kills;
    member->up = false;
    member->died_ns = now_;
    member->left.clear();
    member->out.clear();
    member->orphans.clear();
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

  void OwnerDies() {
    Owner& owner = owners_[options_.first_dies ? 0 : random_.Below(owners_.size())];
    Say("an owner dies");
    owner.dead = true;
    led_ = !options_.first_dies;
    for (const auto& member : members_) {
      if (led_) break;
      const uint64_t life = member->life;
      At(now_ + random_.Between(500, 5000) * kMs, [=, member = member.get()] {
        if (member->life == life && member->up) OnNewLog(member);
      });
    }
    owner.holds.clear();
    owner_died_ns_ = std::max<int64_t>(now_, 1);
    if (members_.size() > 2 && random_.Chance(300'000)) {
      members_[random_.Below(members_.size())]->lies = true;
    }
    for (int i = 0; i < 2; ++i) {
      const int member = static_cast<int>(random_.Below(members_.size()));
      At(now_ + random_.Between(0, 1000) * kMs, [=] { Kill(member); });
    }
  }

  // Whether all that it lacks is at an owner that lives, or at a member that does not lie.
  bool CouldHave(const Member& member) const {
    std::set<int> reached;
    for (const auto& other : members_) {
      if (led_ || other->index == member.index) reached.insert(other->index);
    }
    if (!led_) {
      for (const auto& all : {member.known.Of(newest_), HeardOf(newest_, member)}) {
        for (const Holder& holder : all) {
          const int index = MemberOf(holder.worker);
          if (members_[index]->life == holder.incarnation) reached.insert(index);
        }
      }
    }
    for (const uint32_t part : PartsOf(member)) {
      const std::vector<uint32_t> owners = OwnersOf(part);
      if (!std::all_of(owners.begin(), owners.end(),
                       [this](uint32_t owner) { return owners_[owner].dead; })) {
        continue;
      }
      std::set<int64_t> had;  // Elements.
      for (const auto& other : members_) {
        // Whoever has lied to it is not asked again for this version.
        const bool lies = other->lies || member.bad.count(WorkerOf(other->index)) > 0;
        if (!other->up || lies || reached.count(other->index) == 0) continue;
        for (const Box& box : cuts_) {
          Tensor bytes;
          const PartName name = Name(newest_, part, box);
          if (other->shelf->Find(name, &bytes) != PartShelf::State::kHeld) continue;
          for (int64_t i = 0; i < box.extent[0]; ++i) had.insert(box.begin[0] + i);
        }
      }
      const Box& wanted = cuts_[member.index];
      for (int64_t i = 0; i < wanted.extent[0]; ++i) {
        if (had.count(wanted.begin[0] + i) == 0) return false;
      }
    }
    return true;
  }

  void JudgeRescue() {
    for (const auto& member : members_) {
      if (!member->up || member->has == newest_) continue;
      if (!led_ && member->staging != newest_) continue;  // It has never heard of it.
      if (!CouldHave(*member)) {
        ++report_.out_of_reach;
        continue;
      }
      Break("Fetches", absl::StrCat("member ", member->index, " lacks version ", newest_.number,
                                    ", whose parts others have"));
    }
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
    if (owner_died_ns_ == 0) {
      for (const auto& member : members_) {
        if (options_.come_back ? !member->up || member->has != newest_
                               : member->up && member->has != newest_) {
          Break("Fetches", absl::StrCat("member ", member->index, " has version ",
                                        member->has.number, " and not ", newest_.number));
        }
      }
    } else if (over_.count(newest_.number) == 0) {
      JudgeRescue();
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
  std::vector<Box> cuts_;  // What each member wants of each box.
  WeightVersion newest_, active_;
  bool led_ = true;  // Somebody leads.
  int64_t sealed_ns_ = 0;
  std::set<uint64_t> over_;
  uint64_t attempts_ = 0;
  bool paused_ = false;
  int dead_owners_ = 0;
  int64_t owner_died_ns_ = 0;
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
  options.owner_dies = random.Chance(400'000);
  options.cuts = random.Chance(300'000);
  options.first_dies = options.owner_dies && random.Chance(400'000);
  return options;
}

}  // namespace tryst
