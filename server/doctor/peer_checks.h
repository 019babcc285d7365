#ifndef TRYST_SERVER_DOCTOR_PEER_CHECKS_H_
#define TRYST_SERVER_DOCTOR_PEER_CHECKS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/doctor/report.h"
#include "server/peer_calls.h"

namespace tryst {

// How the way to a peer is tried. RealPeerProbes() do it; tests answer.
struct PeerProbes {
  struct Reach {
    absl::Status status;
    int path_mtu = 0;  // Bytes; 0: not known.
  };
  // Connects to "host:port". kNotFound: the name leads nowhere.
  std::function<Reach(const std::string& address, absl::Duration timeout)> connect;
  // The least of our interfaces' MTUs, the loopback aside; 0: there is none.
  std::function<int()> least_mtu;
  std::function<absl::StatusOr<PeerCalls::Heard>(absl::Duration timeout)> ping;
  std::function<absl::Time()> now;
};
// `calls` outlives the probes.
PeerProbes RealPeerProbes(PeerCalls* calls, const std::string& peer);

// Asks, one step after the other and none longer than `timeout`: does the peer's name
// resolve, does its port answer, does the way there carry full packets, does it let us in,
// is it the worker we mean, and how far is it. An empty `address`: nobody knows it.
void ExaminePeer(const PeerProbes& probes, const std::string& peer, const std::string& address,
                 absl::Duration timeout, Report* report);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_PEER_CHECKS_H_
