#include "tests/hardware/guest/fork_pair.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace tryst {

int RunForked(const std::function<int(int socket, pid_t child)>& parent,
              const std::function<int(int socket)>& child) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
    std::perror("socketpair");
    return 1;
  }
  const pid_t pid = fork();
  if (pid < 0) {
    std::perror("fork");
    return 1;
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[0]);
    const int code = child(sockets[1]);
    std::fflush(nullptr);
    _exit(code);
  }
  close(sockets[1]);
  const int code = parent(sockets[0], pid);
  close(sockets[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (code != 0) return code;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace tryst
