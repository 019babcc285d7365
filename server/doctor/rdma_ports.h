#ifndef TRYST_SERVER_DOCTOR_RDMA_PORTS_H_
#define TRYST_SERVER_DOCTOR_RDMA_PORTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/doctor/host.h"

namespace tryst {

// What sysfs says of one port of an RDMA device; reading it needs no library.
struct RdmaPort {
  struct Gid {
    int index = 0;
    std::string address;    // "fe80:0000:...".
    std::string type;       // "RoCE v2"; empty on InfiniBand.
    std::string interface;  // "eth0"; empty on InfiniBand.
  };
  std::string device;
  int number = 1;
  std::string folder;  // "/sys/class/infiniband/mlx5_0/ports/1".
  std::string state;   // "ACTIVE".
  std::string link;    // "LinkUp", "Polling", "Disabled".
  std::string rate;    // "100 Gb/sec (4X EDR)".
  bool ethernet = false;
  std::vector<Gid> gids;  // Without the empty entries.

  std::string Name() const { return device + ":" + std::to_string(number); }
};
std::vector<RdmaPort> ReadRdmaPorts(const Host& host);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_RDMA_PORTS_H_
