#ifndef TRYST_TESTS_ATTACK_ATTACKERS_H_
#define TRYST_TESTS_ATTACK_ATTACKERS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/attack/honest_job.h"

namespace tryst {

// An attack on a job, which lasts until this is destroyed.
class Attack {
 public:
  virtual ~Attack() = default;
};

struct Attacker {
  std::string who;  // outsider, local user, member, other job
  std::string what;
  // How many threads it has. The burn that it is compared with has as many.
  int threads;
  std::function<std::unique_ptr<Attack>(const HonestJob& job)> start;
};
// `token` is the job's.
std::vector<Attacker> AllAttackers(const std::string& token);

}  // namespace tryst

#endif  // TRYST_TESTS_ATTACK_ATTACKERS_H_
