#ifndef TRYST_TESTS_SIM_SIM_MEMBERS_H_
#define TRYST_TESTS_SIM_SIM_MEMBERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/members/announcer.h"
#include "server/members/heartbeat.h"
#include "tests/doubles/sim_nic/sim_random.h"
#include "tests/doubles/sim_nic/sim_world.h"

namespace tryst {

// The members of a job of any size, on virtual time: the member list and the announcer that ship,
// with calls that take a while, are refused where nobody listens and run out where a host is dark.
class SimMembers {
 public:
  // `open`: each knows the first one alone; else all are configured.
  SimMembers(uint64_t seed, uint32_t hosts, bool open);
  ~SimMembers();

  void Start(uint32_t host);
  void Kill(uint32_t host);   // Without a word.
  void Leave(uint32_t host);  // With a goodbye to everybody.
  // `from` fetches from `to`, and so learns its incarnation.
  void Fetch(uint32_t from, uint32_t to);
  void SetDark(uint32_t host, bool dark) { hosts_[host].dark = dark; }
  void RunFor(int64_t ns);
  // When each that is up last came to know the life of every other that is up, checked every
  // 100 ms; -1: not within `most_ns`.
  int64_t SettleNs(int64_t most_ns);

  struct Messages {
    uint64_t most = 0;  // One host's, sent and answered.
    uint64_t all = 0;
    uint64_t members_told = 0;  // In all answers.
  };
  Messages TakeMessages();  // Since the last time.

 private:
  class Calls;
  class WorldAlarms;
  struct Host {
    uint64_t incarnation = 0;  // 0: down.
    bool dark = false;
    bool dying = false;
    uint64_t messages = 0;
    std::unique_ptr<Membership> members;
    std::unique_ptr<Calls> calls;
    std::unique_ptr<WorldAlarms> alarms;
    std::unique_ptr<Announcer> announcer;
  };
  static std::string NameOf(uint32_t host);
  static std::string AddressOf(uint32_t host);
  bool Settled() const;
  void End(uint32_t host);

  SimWorld world_;
  SimRandom random_;
  const bool open_;
  std::vector<Host> hosts_;
  std::map<std::string, uint32_t> host_of_;
  uint64_t next_incarnation_ = 1;
  uint64_t members_told_ = 0;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_SIM_MEMBERS_H_
