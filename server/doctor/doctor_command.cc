#include "server/doctor/doctor_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "server/doctor/checks.h"
#include "server/doctor/peer_checks.h"

namespace tryst {

int RunDoctor(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
              bool json) {
  const Host host("", ProcessEnvironment(), config, RealHostCalls());
  Report report = Examine(host);
  // Three steps of one second each at most: an answer within three seconds.
  if (!peer.empty()) ExaminePeer(config, peer, std::min(timeout, absl::Seconds(1)), &report);
  const std::string text = json ? report.ToJson() : report.ToText(isatty(STDOUT_FILENO) != 0);
  std::fputs(text.c_str(), stdout);
  return report.Has(Weight::kFault) ? 1 : 0;
}

}  // namespace tryst
