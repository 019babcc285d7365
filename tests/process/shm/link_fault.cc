#include "tests/process/shm/link_fault.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

namespace tryst {
namespace {

using NameOf = int (*)(int fd, sockaddr* address, socklen_t* length);

// Whether the socket's name is a door, where consumers connect.
bool IsDoor(int fd, NameOf name_of) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  if (name_of(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  constexpr char kPrefix[] = "tryst-";
  return address.sun_family == AF_UNIX && address.sun_path[0] == 0 &&
         memcmp(address.sun_path + 1, kPrefix, sizeof(kPrefix) - 1) == 0;
}

}  // namespace

int SayNonsense(LinkSide side) {
  int sent = 0;
  DIR* const dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  while (const dirent* entry = readdir(dir)) {
    const int fd = atoi(entry->d_name);
    int type = 0;
    socklen_t length = sizeof(type);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET)
      continue;
    // The producer's end was accepted at a door; the consumer's end connected to one.
    const bool right = side == LinkSide::kConsumer
                           ? IsDoor(fd, &getpeername)
                           : IsDoor(fd, &getsockname) && !IsDoor(fd, &getpeername);
    if (right && send(fd, "?", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) ++sent;
  }
  closedir(dir);
  return sent;
}

}  // namespace tryst
