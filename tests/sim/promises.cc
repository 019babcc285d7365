#include "tests/sim/promises.h"

#include "absl/strings/str_cat.h"

namespace tryst {

Promises::Id Promises::Owe(std::string what, int64_t by_ns) {
  const Id id = next_id_++;
  owed_[id] = {std::move(what), clock_->NowNs(), by_ns};
  due_.insert({by_ns, id});
  return id;
}

void Promises::Keep(Id id) {
  const auto found = owed_.find(id);
  if (found == owed_.end()) {
    return Violate(
        absl::StrCat("promise ", id, id < next_id_ ? " was kept twice" : " was never made"));
  }
  const Owed& owed = found->second;
  if (due_.erase({owed.by_ns, id}) == 1 && clock_->NowNs() > owed.by_ns) {
    Violate(absl::StrCat(owed.what, ": ", clock_->NowNs() - owed.by_ns, " ns too late"));
  }
  owed_.erase(found);
}

void Promises::AddBudget(std::string name, std::function<int64_t()> used) {
  budgets_.push_back({std::move(name), std::move(used)});
}

void Promises::Check() {
  while (!due_.empty() && due_.begin()->first < clock_->NowNs()) {
    const Owed& owed = owed_[due_.begin()->second];
    Violate(absl::StrCat(owed.what, ": owed since ", owed.since_ns, " ns, overdue"));
    due_.erase(due_.begin());
  }
  for (const Budget& budget : budgets_) {
    if (budget.used() < 0) Violate(absl::StrCat(budget.name, ": more given back than taken"));
  }
}

void Promises::CheckEnd() {
  Check();
  for (const auto& [id, owed] : owed_) {
    Violate(absl::StrCat(owed.what, ": waits for ever, since ", owed.since_ns, " ns"));
  }
  for (const Budget& budget : budgets_) {
    if (const int64_t used = budget.used(); used > 0) {
      Violate(absl::StrCat(budget.name, ": ", used, " not given back"));
    }
  }
}

void Promises::Violate(const std::string& what) {
  violations_.push_back(absl::StrCat("at ", clock_->NowNs(), " ns: ", what));
}

}  // namespace tryst
