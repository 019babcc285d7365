#include "tests/process/e2e/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <random>

#include "base/log.h"

namespace tryst {
namespace {

// The kernel gives connections ports from 32768 on (ip_local_port_range).
constexpr int kFirst = 12'000;
constexpr int kLast = 32'000;

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return bound;
}

}  // namespace

int FreePort() {
  std::random_device random;  // Other tests, which look for ports at this moment, draw others.
  std::uniform_int_distribution<int> ports(kFirst, kLast);
  for (int tries = 0; tries < 10'000; ++tries) {
    const int port = ports(random);
    if (IsFree(port)) return port;
  }
  TRYST_CHECK(false) << "no free port from " << kFirst << " to " << kLast;
  return -1;
}

}  // namespace tryst
