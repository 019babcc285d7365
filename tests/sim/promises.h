#ifndef TRYST_TESTS_SIM_PROMISES_H_
#define TRYST_TESTS_SIM_PROMISES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tryst {

// What the code under simulation owes, and whether it was done: every callback once and
// by its time, every budget back at zero in the end.
class Promises {
 public:
  using Id = uint64_t;

  explicit Promises(const Clock* clock) : clock_(clock) {}

  // Somebody is owed one call of Keep() with the result, by `by_ns` at the latest.
  Id Owe(std::string what, int64_t by_ns);
  void Keep(Id id);  // A second time, or for nobody, is a violation.
  size_t owed() const { return owed_.size(); }

  // `used` is asked by CheckEnd() and must be 0 then, and never below it before.
  void AddBudget(std::string name, std::function<int64_t()> used);

  // Notes what is overdue, once each. Cheap: to be called after every turn.
  void Check();
  // When all has come to rest: nothing may be owed and no budget used.
  void CheckEnd();

  void Violate(const std::string& what);
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  struct Owed {
    std::string what;
    int64_t since_ns = 0;
    int64_t by_ns = 0;
  };
  struct Budget {
    std::string name;
    std::function<int64_t()> used;
  };

  const Clock* const clock_;
  Id next_id_ = 1;
  std::map<Id, Owed> owed_;
  std::set<std::pair<int64_t, Id>> due_;  // Not yet noted as overdue.
  std::vector<Budget> budgets_;
  std::vector<std::string> violations_;
};

}  // namespace tryst

#endif  // TRYST_TESTS_SIM_PROMISES_H_
