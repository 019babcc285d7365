#ifndef TRYST_SERVER_DOCTOR_REPORT_H_
#define TRYST_SERVER_DOCTOR_REPORT_H_

#include <string>
#include <utility>
#include <vector>

namespace tryst {

// How serious a finding is.
enum class Weight {
  kNote,     // Good to know; a healthy machine may have it.
  kWarning,  // It works, but slower or less surely than it could.
  kFault,    // What the configuration asks for will not work.
};
const char* WeightName(Weight weight);

// One thing that is wrong. `action` is a command to type, or a change to make.
struct Finding {
  std::string check;
  Weight weight = Weight::kNote;
  std::string seen;
  std::string means;
  std::string action;
};

// What the checks have found so far.
class Report {
 public:
  void Note(std::string seen, std::string means, std::string action) {
    Add(Weight::kNote, std::move(seen), std::move(means), std::move(action));
  }
  void Warn(std::string seen, std::string means, std::string action) {
    Add(Weight::kWarning, std::move(seen), std::move(means), std::move(action));
  }
  void Fault(std::string seen, std::string means, std::string action) {
    Add(Weight::kFault, std::move(seen), std::move(means), std::move(action));
  }
  void Add(Weight weight, std::string seen, std::string means, std::string action) {
    findings_.push_back({check_, weight, std::move(seen), std::move(means), std::move(action)});
  }
  // Names the check that adds the next findings.
  void Begin(std::string check) {
    check_ = std::move(check);
    ++checks_;
  }

  const std::vector<Finding>& findings() const { return findings_; }
  int checks() const { return checks_; }
  bool Has(Weight weight) const;

  // For people: the worst findings first, then a summary line.
  std::string ToText(bool colour) const;
  // One JSON object: {"checks": N, "findings": [{"check", "weight", "seen", "means", "action"}]}.
  std::string ToJson() const;

 private:
  std::string check_;
  int checks_ = 0;
  std::vector<Finding> findings_;
};

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_REPORT_H_
