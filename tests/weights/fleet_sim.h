#ifndef TRYST_TESTS_WEIGHTS_FLEET_SIM_H_
#define TRYST_TESTS_WEIGHTS_FLEET_SIM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Owners, members and leaders of one set, as they ship, on virtual time, with whatever goes wrong;
// every promise of weights/ is looked at after every event. One thread.
namespace tryst {

enum class FleetFault : uint8_t {
  kNone,
  kKillReceiver,  // Before it hears the message.
  kKillSender,    // After it has sent it.
  kLose,
  kDelay,  // By more than a permit.
  kDuplicate,
  kPause,       // The receiver stands still, and hears everything later.
  kCut,         // The receiver neither hears nor is heard.
  kCutDecider,  // Nobody reaches the decider.
};
inline constexpr int kFleetFaultCount = static_cast<int>(FleetFault::kCutDecider) + 1;
const char* FleetFaultName(FleetFault fault);

struct FleetOptions {
  uint64_t seed = 1;
  int members = 2;
  int owners = 2;
  int leaders = 2;
  bool worker_decides = false;  // The log dies with the leader, of whom there is one.
  bool first_leads = false;     // That worker is the first owner's: both die at once.
  bool random_faults = false;
  size_t kept_entries = 64;         // The decider and leaders keep so many.
  size_t most_open = 1;             // The trainers seal while fewer versions than these are sealed.
  bool fickle = false;              // They want a version active once, and then the next one.
  bool slow_member = false;         // One member is late for every second version, and is put out.
  int64_t run_ns = 40'000'000'000;  // Faults end after 3/10 of it; the last version begins at 5/8.
  int64_t seal_every_ns = 0;        // A version begins so long after the former one, or later.
  bool engines_at_once = false;     // They stage, hold and switch in no time.
  // All members are judged so often, and whoever hears a message then, too. 0: all, after every
  // event.
  int64_t judge_every_ns = 0;
  // One trouble, of which the report has the times. Nobody reaches the decider in `decider_cut_ns`;
  // or the leader dies when it next prepares a version.
  int64_t decider_cut_at_ns = 0, decider_cut_ns = 0;
  int64_t kill_leader_at_ns = 0;  // 0: it lives.
  // One fault, at one message; the runs of one seed are equal up to it.
  uint64_t at_message = 0;
  FleetFault fault = FleetFault::kNone;
  bool verbose = false;
};

struct FleetReport {
  std::vector<std::string> violations;  // "OneFate: ...".
  uint64_t events = 0;
  uint64_t messages = 0;
  uint64_t messages_with_faults = 0;  // Those at which a fault may still be.
  uint64_t operations = 0;  // Seals, activations, stages, switches, kills, pauses and cuts.
  uint64_t sealed = 0, active = 0, dropped = 0, terms = 0, reigns = 0, lives = 0;
  uint64_t barriers = 0, held = 0, kills = 0, based = 0, refused_votes = 0;
  uint64_t trace_hash = 0;  // Equal for equal options.
  uint64_t most_peers = 0;  // That a leader knew.
  // From the first word to prepare a version until all members had switched to it, at most; of
  // versions that met no trouble, and of how many.
  int64_t switched_ns = 0;
  uint64_t switches_timed = 0;
  // These are of the one trouble. -1 says that it never came to that.
  uint64_t unconfirmed = 0;        // Members that served knowingly what nobody confirmed.
  int64_t last_confirmed_ns = -1;  // From its begin until a member was last seen with a permit,
  int64_t permits_again_ns = -1;   // from its end until all had a new permit,
  int64_t active_again_ns = -1;    // and until all had switched to the version that was wished.
};

FleetReport RunFleet(const FleetOptions& options);

// A fleet that the seed draws, with random faults.
FleetOptions FleetOfSeed(uint64_t seed);

}  // namespace tryst

#endif  // TRYST_TESTS_WEIGHTS_FLEET_SIM_H_
