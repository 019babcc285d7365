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
  size_t kept_entries = 64;  // The decider and leaders keep so many.
  size_t most_open = 1;      // The trainers seal while fewer versions than these are sealed.
  bool fickle = false;       // They want a version active once, and then the next one.
  bool slow_member = false;  // One member is late for every second version, and is put out.
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
};

FleetReport RunFleet(const FleetOptions& options);

// A fleet that the seed draws, with random faults.
FleetOptions FleetOfSeed(uint64_t seed);

}  // namespace tryst

#endif  // TRYST_TESTS_WEIGHTS_FLEET_SIM_H_
