#include "server/doctor/doctor_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
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

// The worker that answers at `address`. If it is the one that this configuration describes, its
// ports are taken for a good reason.
std::string WhoAnswers(const ServerConfig& config, const std::string& address) {
  const size_t colon = address.rfind(':');
  if (config.job.empty() || colon == std::string::npos) return "";
  ServerConfig own = config;
  const std::string self = absl::StrCat("/job:", config.job, "/replica:0/task:", config.task);
  const std::string host = address.substr(0, colon);
  own.join = absl::StrCat(self, "@", host == "0.0.0.0" ? "127.0.0.1" : host, address.substr(colon));
  own.resolver = "flags";
  own.cluster_spec.clear();
  const absl::StatusOr<std::unique_ptr<PeerClient>> client = PeerClient::Make(own);
  if (!client.ok()) return "";
  const auto heard = (*client)->calls()->Ping(self, absl::Milliseconds(700));
  return heard.ok() ? heard->self.worker : "";
}

}  // namespace

int RunDoctor(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
              bool json) {
  HostCalls calls = RealHostCalls();
  calls.who_answers = [&config](const std::string& address) { return WhoAnswers(config, address); };
  const Host host("", ProcessEnvironment(), config, calls);
  Report report = Examine(host);
  // Connects and makes two calls, each with a limit of one second.
  if (!peer.empty()) ExamineWayTo(config, peer, std::min(timeout, absl::Seconds(1)), &report);
  const std::string text = json ? report.ToJson() : report.ToText(isatty(STDOUT_FILENO) != 0);
  std::fputs(text.c_str(), stdout);
  return report.Has(Weight::kFault) ? 1 : 0;
}

}  // namespace tryst
