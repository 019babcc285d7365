#include "verbs/soft/flow_rate.h"

// Not with <netinet/tcp.h>, whose tcp_info is older.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace tryst {

uint64_t FlowRate(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_delivery_rate) + sizeof(uint64_t);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || length < kNeeded) return 0;
  return info.tcpi_delivery_rate;
}

}  // namespace tryst
