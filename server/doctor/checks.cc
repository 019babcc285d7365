#include "server/doctor/checks.h"

namespace tryst {

std::vector<Check> AllChecks() {
  std::vector<Check> all;
  for (const auto& area : {RdmaChecks(), GpuChecks(), MemoryChecks(), ProcessChecks(),
                           PollerChecks(), SameHostChecks(), NetworkChecks(), SecurityChecks()}) {
    all.insert(all.end(), area.begin(), area.end());
  }
  return all;
}

Report Examine(const Host& host) {
  Report report;
  for (const Check& check : AllChecks()) {
    report.Begin(check.name);
    check.run(host, &report);
  }
  return report;
}

}  // namespace tryst
