#ifndef TRYST_SERVER_DOCTOR_PEER_CHECKS_H_
#define TRYST_SERVER_DOCTOR_PEER_CHECKS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/doctor/report.h"
#include "server/members/peer_calls.h"

namespace tryst {

// The probes of the path to a peer. RealPeerProbes() makes real ones; tests make their own.
struct PeerProbes {
  struct Reach {
    absl::Status status;
    int path_mtu = 0;  // In bytes; 0: unknown.
  };
  // Connects to "host:port". kNotFound: the name does not resolve.
  std::function<Reach(const std::string& address, absl::Duration timeout)> connect;
  // The smallest MTU of our interfaces other than the loopback; 0: there is none.
  std::function<int()> least_mtu;
  std::function<absl::StatusOr<PeerCalls::Heard>(absl::Duration timeout)> ping;
  std::function<absl::Time()> now;
};
// `calls` outlives the probes.
PeerProbes RealPeerProbes(PeerCalls* calls, const std::string& peer);

// Asks, one after the other and each within `timeout`: Does the peer's name resolve? Does its port
// answer? Does the path carry full packets? Does the peer admit us? Is it the worker that we mean?
// How long does a round trip take? An empty `address` means that it is unknown.
void ExaminePeer(const PeerProbes& probes, const std::string& peer, const std::string& address,
                 absl::Duration timeout, Report* report);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_PEER_CHECKS_H_
