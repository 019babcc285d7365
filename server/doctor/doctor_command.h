#ifndef TRYST_SERVER_DOCTOR_DOCTOR_COMMAND_H_
#define TRYST_SERVER_DOCTOR_DOCTOR_COMMAND_H_

#include <string>

#include "absl/time/time.h"
#include "server/config/config.h"

namespace tryst {

// `tryst doctor [PEER]`: examines this machine for a server with `config`, and the path to `peer`
// unless that is empty. Prints the report and returns the exit status: 1 when there is a fault.
int RunDoctor(const ServerConfig& config, const std::string& peer, absl::Duration timeout,
              bool json);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_DOCTOR_COMMAND_H_
