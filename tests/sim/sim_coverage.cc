#include "tests/sim/sim_coverage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reached.h"

namespace tryst {
namespace {

// Over NICs alone these do not happen.
bool IsOfSharedMemory(FetchState state, FetchEvent event) {
  return state == FetchState::kCopying || event == FetchEvent::kCopy ||
         event == FetchEvent::kUnlinked;
}
bool IsOfSharedMemory(ServeState state, ServeEvent event) {
  return state == ServeState::kStaging || state == ServeState::kInParts ||
         state == ServeState::kPulled || event == ServeEvent::kUnlinked ||
         event == ServeEvent::kStage || event == ServeEvent::kPart || event == ServeEvent::kLend;
}

template <typename State>
std::string RowName(const char* end, State state, const char* state_name, const char* event_name) {
  return absl::StrCat(end, " ", static_cast<int>(state), " ", state_name, ": ", event_name);
}

std::string FetchRowName(FetchState state, FetchEvent event) {
  return RowName("fetch", state, FetchStateName(state), FetchEventName(event));
}
std::string ServeRowName(ServeState state, ServeEvent event) {
  return RowName("slot", state, ServeStateName(state), ServeEventName(event));
}
std::string PairName(size_t one, size_t other) {
  return absl::StrCat(TroubleName(static_cast<Trouble>(one)), " and ",
                      TroubleName(static_cast<Trouble>(other)));
}

}  // namespace

TableCounts& TableCounts::operator+=(const TableCounts& other) {
  for (size_t s = 0; s < kFetchStateCount; ++s) {
    for (size_t e = 0; e < kFetchEventCount; ++e) fetch[s][e] += other.fetch[s][e];
  }
  for (size_t s = 0; s < kServeStateCount; ++s) {
    for (size_t e = 0; e < kServeEventCount; ++e) serve[s][e] += other.serve[s][e];
  }
  return *this;
}

void TableWatch::OnFetchEvent(const void* end, const FetchAsk& ask, FetchState from,
                              FetchEvent event) {
  ++counts_.fetch[static_cast<size_t>(from)][static_cast<size_t>(event)];
  if (next_ != nullptr) next_->OnFetchEvent(end, ask, from, event);
}

void TableWatch::OnServeEvent(const void* end, uint16_t slot, ServeState from, ServeEvent event) {
  ++counts_.serve[static_cast<size_t>(from)][static_cast<size_t>(event)];
  if (next_ != nullptr) next_->OnServeEvent(end, slot, from, event);
}

SimCoverage::SimCoverage(bool has_shm) {
  for (size_t s = 0; s < kFetchStateCount; ++s) {
    for (size_t e = 0; e < kFetchEventCount; ++e) {
      const auto state = static_cast<FetchState>(s);
      const auto event = static_cast<FetchEvent>(e);
      if (FindFetchRow(state, event) == nullptr) continue;
      if (!has_shm && IsOfSharedMemory(state, event)) continue;
      goals_[FetchRowName(state, event)].kind = Kind::kFetch;
    }
  }
  for (size_t s = 0; s < kServeStateCount; ++s) {
    for (size_t e = 0; e < kServeEventCount; ++e) {
      const auto state = static_cast<ServeState>(s);
      const auto event = static_cast<ServeEvent>(e);
      if (FindServeRow(state, event) == nullptr) continue;
      if (!has_shm && IsOfSharedMemory(state, event)) continue;
      goals_[ServeRowName(state, event)].kind = Kind::kServe;
    }
  }
  for (size_t one = 0; one < kTroubleCount; ++one) {
    for (size_t other = one + 1; other < kTroubleCount; ++other) {
      goals_[PairName(one, other)].kind = Kind::kPair;
    }
  }
  CountGuards(nullptr);
}

void SimCoverage::Add(const TableCounts& tables, const Troubles& troubles) {
  ++seeds_;
  for (size_t one = 0; one < kTroubleCount; ++one) seeds_with_[one] += troubles[one];
  for (size_t s = 0; s < kFetchStateCount; ++s) {
    for (size_t e = 0; e < kFetchEventCount; ++e) {
      if (tables.fetch[s][e] == 0) continue;
      Goal* goal = &goals_[FetchRowName(static_cast<FetchState>(s), static_cast<FetchEvent>(e))];
      goal->kind = Kind::kFetch;
      Count(goal, tables.fetch[s][e], troubles);
    }
  }
  for (size_t s = 0; s < kServeStateCount; ++s) {
    for (size_t e = 0; e < kServeEventCount; ++e) {
      if (tables.serve[s][e] == 0) continue;
      Goal* goal = &goals_[ServeRowName(static_cast<ServeState>(s), static_cast<ServeEvent>(e))];
      goal->kind = Kind::kServe;
      Count(goal, tables.serve[s][e], troubles);
    }
  }
  for (size_t one = 0; one < kTroubleCount; ++one) {
    for (size_t other = one + 1; other < kTroubleCount; ++other) {
      Count(&goals_[PairName(one, other)], troubles[one] && troubles[other], troubles);
    }
  }
  CountGuards(&troubles);
}

void SimCoverage::Count(Goal* goal, uint64_t times, const Troubles& troubles) {
  if (times == 0) return;
  ++goal->seeds;
  goal->times += times;
  for (size_t one = 0; one < kTroubleCount; ++one) goal->with[one] += troubles[one];
}

// Null: only notes how often each was reached until now. Guards of one name are one goal.
void SimCoverage::CountGuards(const Troubles* troubles) {
  std::map<std::string, uint64_t> now;
  ForEachGuard([&](const char* name, uint64_t times) { now[name] += times; });
  for (const auto& [name, times] : now) {
    uint64_t& seen = guards_seen_[name];
    const uint64_t more = times - std::exchange(seen, times);
    // What a hostile peer alone reaches is no goal of the simulator.
    if (absl::StartsWith(name, "hostile: ")) continue;
    Goal* goal = &goals_[name];
    if (troubles != nullptr) Count(goal, more, *troubles);
  }
}

const char* SimCoverage::Title(Kind kind) {
  switch (kind) {
    case Kind::kFetch:
      return "states and events of a fetch";
    case Kind::kServe:
      return "states and events of a producer's slot";
    case Kind::kGuard:
      return "guards";
    case Kind::kPair:
      return "pairs of troubles in one seed";
  }
  return "";
}

std::string SimCoverage::ToText() const {
  std::string text;
  for (Kind kind : {Kind::kFetch, Kind::kServe, Kind::kGuard, Kind::kPair}) {
    std::vector<std::pair<std::string, Goal>> goals;
    for (const auto& [name, goal] : goals_) {
      if (goal.kind == kind) goals.emplace_back(name, goal);
    }
    std::stable_sort(goals.begin(), goals.end(), [](const auto& one, const auto& other) {
      return one.second.seeds < other.second.seeds;
    });
    const auto reached = std::count_if(goals.begin(), goals.end(),
                                       [](const auto& goal) { return goal.second.seeds > 0; });
    const auto often = std::count_if(goals.begin(), goals.end(),
                                     [](const auto& goal) { return goal.second.seeds >= 10; });
    absl::StrAppend(&text, Title(kind), ": ", reached, " of ", goals.size(), " reached, ", often,
                    " of them by 10 seeds or more of ", seeds_, "\n");
    for (const auto& [name, goal] : goals) {
      absl::StrAppendFormat(&text, "%10d seeds %12d times  %s\n", goal.seeds, goal.times, name);
    }
  }
  return text;
}

SimWeights SimCoverage::Learn(const SimWeights& now) const {
  std::vector<const Goal*> reached;
  for (const auto& [name, goal] : goals_) {
    if (goal.seeds > 0) reached.push_back(&goal);
  }
  std::stable_sort(reached.begin(), reached.end(),
                   [](const Goal* one, const Goal* other) { return one->seeds < other->seeds; });
  reached.resize((reached.size() + 7) / 8);
  SimWeights learned = now;
  for (size_t i = 0; i < kTroubleCount; ++i) {
    if (reached.empty() || seeds_with_[i] == 0) continue;
    // Thousandths: how much likelier the trouble is beside a rare goal than anywhere.
    uint64_t lift = 0;
    for (const Goal* goal : reached) {
      lift += 1000 * goal->with[i] * seeds_ / (goal->seeds * seeds_with_[i]);
    }
    lift = std::clamp<uint64_t>(lift / reached.size(), 500, 2000);
    const auto trouble = static_cast<Trouble>(i);
    // No value ends at 0 or 100: the next round would learn nothing from those.
    learned.Set(trouble, static_cast<uint32_t>(
                             std::clamp<uint64_t>((now.of(trouble) * lift + 500) / 1000, 5, 95)));
  }
  return learned;
}

}  // namespace tryst
