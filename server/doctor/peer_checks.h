#ifndef TRYST_SERVER_DOCTOR_PEER_CHECKS_H_
#define TRYST_SERVER_DOCTOR_PEER_CHECKS_H_

#include <string>

#include "absl/time/time.h"
#include "server/config.h"
#include "server/doctor/report.h"

namespace tryst {

// Asks, one step after the other and none longer than `timeout`: does the peer's name
// resolve, does its port answer, does the way there carry full packets, does it let us in,
// is it the worker we mean, and how far is it. `config.join` or the cluster says where it is.
void ExaminePeer(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
                 Report* report);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_PEER_CHECKS_H_
