// A ps that forks: its child does nothing but hold copies of its sockets. Prints "serving WORKER at
// ADDRESS incarnation I child PID", and serves until it is killed.
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>

#include "server/server.h"

int main() {
  tryst::ServerConfig config;
  config.job = "ps";
  config.insecure = true;
  config.nic = "soft";
  config.shm = "on";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  auto server = tryst::ServerBuilder().SetEnvironment({}).Build(config);
  if (!server.ok() || !(*server)->Start().ok()) return 1;
  std::printf("serving %s at %s incarnation %016llx\n", (*server)->worker().c_str(),
              (*server)->address().c_str(),
              static_cast<unsigned long long>((*server)->incarnation()));
  std::fflush(stdout);
  // Forks when a second line on standard input says that the consumer's links are there.
  if (getchar() == EOF) return 1;
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  std::printf("child %d\n", child);
  std::fflush(stdout);
  for (;;) pause();
}
