#include "server/doctor/peer_checks.h"

#include "absl/strings/str_cat.h"

namespace tryst {
namespace {

constexpr absl::Duration kFar = absl::Milliseconds(20);

bool CheckReach(const PeerProbes& probes, const std::string& address, absl::Duration timeout,
                Report* report) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const PeerProbes::Reach reach = probes.connect(address, timeout);
  report->Begin("peer-name");
  if (absl::IsNotFound(reach.status)) {
    report->Fault(absl::StrCat(host, ": ", reach.status.message()), "the peer cannot be found",
                  absl::StrCat("getent hosts ", host, "; correct the cluster or the DNS"));
    return false;
  }
  report->Begin("peer-port");
  if (!reach.status.ok()) {
    report->Fault(
        absl::StrCat(address, ": ", reach.status.message()),
        absl::IsDeadlineExceeded(reach.status) ? "a firewall swallows it, or the machine is off"
                                               : "the machine is up, and nobody listens there",
        absl::StrCat("there: ss -ltn 'sport = :", port, "'; between: nc -vz ", host, " ", port));
    return false;
  }
  report->Begin("peer-mtu");
  const int here = probes.least_mtu();
  if (reach.path_mtu > 0 && here > 0 && reach.path_mtu < here) {
    report->Warn(absl::StrCat("the way to ", address, " carries packets of ", reach.path_mtu,
                              " bytes, our interfaces ", here),
                 "something between has a smaller MTU: a tunnel, or the peer itself",
                 "set one MTU on the whole way: ip link set DEV mtu N");
  }
  return true;
}

void ReportNoAnswer(const absl::Status& status, Report* report) {
  const bool refused = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
                       absl::IsFailedPrecondition(status);
  if (refused) {
    report->Fault(status.ToString(), "the peer is there and does not let us in",
                  "use the same cluster name, token and certificate authority");
  } else {
    report->Fault(status.ToString(), "something listens there and does not answer us as a server",
                  "see that both use TLS or both do not, and that the process is not stopped");
  }
}

void CheckAnswer(const PeerProbes& probes, const std::string& peer, absl::Duration timeout,
                 Report* report) {
  report->Begin("peer-answer");
  const absl::StatusOr<PeerCalls::Heard> first = probes.ping(timeout);
  if (!first.ok()) return ReportNoAnswer(first.status(), report);
  report->Begin("peer-identity");
  if (first->self.worker != peer) {
    report->Fault(absl::StrCat("that address belongs to ", first->self.worker, ", not to ", peer),
                  "fetches would be refused", "correct the address in the cluster");
  }
  report->Begin("peer-latency");
  const absl::Time before = probes.now();
  const bool again = probes.ping(timeout).ok();
  const absl::Duration took = probes.now() - before;
  if (again && took > kFar) {
    report->Note(absl::StrCat("a call takes ", absl::FormatDuration(took)),
                 "it is far away, or busy", "ping it; look at its CPU");
  }
}

}  // namespace

void ExaminePeer(const PeerProbes& probes, const std::string& peer, const std::string& address,
                 absl::Duration timeout, Report* report) {
  report->Begin("peer-address");
  if (address.empty()) {
    report->Fault(absl::StrCat("nobody says where ", peer, " is"), "it cannot be called",
                  absl::StrCat("name it as ", peer, "@host:port, or give --cluster_spec"));
    return;
  }
  if (CheckReach(probes, address, timeout, report)) CheckAnswer(probes, peer, timeout, report);
}

}  // namespace tryst
