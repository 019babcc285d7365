#include "server/doctor/doctor_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "server/doctor/checks.h"
#include "server/doctor/peer_checks.h"
#include "server/peer_client.h"

namespace tryst {
namespace {

void ExamineWayTo(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
                  Report* report) {
  const absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(config);
  if (!client.ok()) {
    report->Begin("peer-client");
    report->Fault(std::string(client.status().message()), "we cannot call anybody",
                  "correct the settings named");
    return;
  }
  std::string address;
  for (const Member& member : (*client)->members()->Members()) {
    if (member.worker == peer) address = member.address;
  }
  ExaminePeer(RealPeerProbes((*client)->calls(), peer), peer, address, timeout, report);
}

}  // namespace

int RunDoctor(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
              bool json) {
  const Host host("", ProcessEnvironment(), config, RealHostCalls());
  Report report = Examine(host);
  // Connecting and two calls: three seconds at most.
  if (!peer.empty()) ExamineWayTo(config, peer, std::min(timeout, absl::Seconds(1)), &report);
  const std::string text = json ? report.ToJson() : report.ToText(isatty(STDOUT_FILENO) != 0);
  std::fputs(text.c_str(), stdout);
  return report.Has(Weight::kFault) ? 1 : 0;
}

}  // namespace tryst
