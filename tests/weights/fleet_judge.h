#ifndef TRYST_TESTS_WEIGHTS_FLEET_JUDGE_H_
#define TRYST_TESTS_WEIGHTS_FLEET_JUDGE_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/weights/fleet_sim.h"
#include "weights/questions.h"
#include "weights/stage_table.h"

namespace tryst {

// A member that would serve now, with a permit.
struct OpenMember {
  std::string name;
  uint64_t incarnation;
  uint64_t log;
  uint64_t number;
  WeightVersion memory;  // What lies where it serves from.
  bool touched;          // And is being changed.
  const LogState* state;
};

// Knows every life of the log from its decider, and holds all others against it.
class FleetJudge {
 public:
  // `most_peers`: that a leader may know.
  FleetJudge(const GroupTimes& times, size_t most_peers, FleetReport* report)
      : times_(times), most_peers_(most_peers), report_(report) {}

  void OnLife(uint64_t life);
  void OnReady(uint64_t incarnation, uint64_t term, uint64_t number, const WeightRoot& digest);
  void OnChosen(uint64_t life, const LogEntry& entry, const std::vector<OpenMember>& open,
                int64_t now_ns);
  void OnApplied(uint64_t life, const LogState& state, const std::string& who);
  // What a member tells of its stage follows the table of stages from what it told before.
  void OnTold(const Question& question, const std::string& who, int64_t now_ns);
  void OnPermit(uint64_t incarnation, uint64_t question);  // A member hears of it.
  void OnStage(uint64_t life, const LogEntry& version, const std::string& who);
  void OnPeers(size_t peers);
  void Look(const std::vector<OpenMember>& open, int64_t now_ns);
  void Break(const std::string& promise, const std::string& how);

 private:
  struct Life {
    std::vector<LogState> states;         // By length.
    std::map<uint64_t, LogEntry> sealed;  // By number.
    std::set<uint64_t> dropped;
    std::map<uint64_t, int64_t> active;                // Number -> when it was chosen.
    std::map<uint64_t, std::vector<uint64_t>> owners;  // By term.
    std::set<uint64_t> replaced;                       // Owners of former terms.
  };
  // What a member, by its incarnation, told last of its stage, and when it asked.
  struct Told {
    WeightVersion version;
    StageState state = StageState::kNone;
    uint64_t question = 0;
    std::array<int64_t, 8> asked_ns = {};  // By question.
    int64_t permit_over_ns = 0;            // By every clock.
  };
  void OnSealed(Life* life, const LogEntry& entry);

  const GroupTimes times_;
  const size_t most_peers_;
  FleetReport* const report_;
  std::map<uint64_t, Life> lives_;
  std::map<uint64_t, Told> told_;
  uint64_t life_ = 0;
  int64_t life_since_ns_ = 0, now_ns_ = 0;
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, WeightRoot>
      ready_;                                                  // Incarnation, term, number.
  std::map<std::pair<uint64_t, uint64_t>, WeightRoot> roots_;  // Number and birth, of all lives.
};

}  // namespace tryst

#endif  // TRYST_TESTS_WEIGHTS_FLEET_JUDGE_H_
