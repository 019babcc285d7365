#ifndef TRYST_SERVER_DOCTOR_CHECKS_H_
#define TRYST_SERVER_DOCTOR_CHECKS_H_

#include <vector>

#include "server/doctor/host.h"
#include "server/doctor/report.h"

namespace tryst {

// One question about a machine. `run` adds nothing to the report when all is well. It takes
// milliseconds, changes nothing, and must not fail when a file is missing.
struct Check {
  const char* name;
  void (*run)(const Host& host, Report* report);
};

std::vector<Check> RdmaChecks();
std::vector<Check> MemoryChecks();
std::vector<Check> ProcessChecks();
std::vector<Check> PollerChecks();
std::vector<Check> SameHostChecks();
std::vector<Check> NetworkChecks();
std::vector<Check> SecurityChecks();
std::vector<Check> GpuChecks();

// All checks of this folder.
std::vector<Check> AllChecks();
Report Examine(const Host& host);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_CHECKS_H_
