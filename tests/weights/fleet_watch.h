#ifndef TRYST_TESTS_WEIGHTS_FLEET_WATCH_H_
#define TRYST_TESTS_WEIGHTS_FLEET_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "tests/weights/fleet_sim.h"

namespace tryst {

// Takes the times of a fleet's switches, and of the one trouble that it gets over. FleetReport says
// which.
class FleetWatch {
 public:
  FleetWatch(size_t members, FleetReport* report) : members_(members), report_(report) {}

  void OnTrouble(int64_t begin_ns, int64_t end_ns);
  bool troubled(int64_t now_ns) const { return begin_ns_ >= 0 && now_ns < end_ns_; }
  void OnPrepare(uint64_t number, int64_t now_ns);  // A leader tells somebody to.
  void OnSwitched(uint64_t member, uint64_t number, int64_t now_ns);
  void OnPermit(uint64_t member, int64_t sent_ns, int64_t now_ns);  // It hears what was sent then.
  void OnConfirmed(int64_t now_ns);     // Somebody serves with a permit.
  void OnUnconfirmed(uint64_t member);  // It serves without one.

 private:
  struct Version {
    int64_t prepared_ns = 0;
    bool timed = true;  // No trouble came between.
    std::set<uint64_t> switched;
  };

  const size_t members_;
  FleetReport* const report_;
  std::map<uint64_t, Version> versions_;  // By number.
  int64_t begin_ns_ = -1, end_ns_ = -1;   // The trouble's. -1 says that it has not come.
  uint64_t wished_ = 0;                   // What is wished in the trouble or next. 0: nothing yet.
  std::set<uint64_t> permitted_, unconfirmed_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_WEIGHTS_FLEET_WATCH_H_
