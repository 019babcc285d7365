// A forked child holds copies of its parent's sockets, so the sockets do not show its parent's end.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/server.h"

namespace tryst {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";

TEST(Fork, TheEndOfAForkedProducerIsSeenOverSharedMemory) {
  int to[2];
  int from[2];
  ASSERT_EQ(pipe(to), 0);
  ASSERT_EQ(pipe(from), 0);
  const pid_t ps = fork();
  if (ps == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    for (int fd : {to[0], to[1], from[0], from[1]}) close(fd);
    execl("tests/attack/forked_producer", "forked_producer", nullptr);
    _exit(127);
  }
  FILE* const said = fdopen(from[0], "r");
  char address[256] = {};
  unsigned long long incarnation = 0;
  ASSERT_EQ(fscanf(said, "serving %*s at %255s incarnation %llx", address, &incarnation), 2);

  ServerConfig config;
  config.job = "worker";
  config.insecure = true;
  config.nic = "soft";
  config.shm = "on";
  config.listen = "127.0.0.1:0";
  config.open_cluster = true;
  config.join = absl::StrCat(kPs, "@", address);
  auto worker = ServerBuilder().SetEnvironment({}).Build(config);
  ASSERT_TRUE(worker.ok()) << worker.status();
  ASSERT_TRUE((*worker)->Start().ok());
  const TensorKey key =
      *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", kPs,
                                        static_cast<uint64_t>(incarnation), (*worker)->worker()));
  auto step = (*worker)->steps()->StartStep(1);
  ASSERT_TRUE(step.ok());
  absl::Status ended;
  Mutex mu;
  CondVar changed;
  bool over = false;
  RecvArgs args;
  args.deadline = Deadline::Never();
  (*step)->RecvAsync(key, args, [&](Received&& received) {
    MutexLock lock(&mu);
    ended = std::move(received.status);
    over = true;
    changed.NotifyAll();
  });
  std::string paths;
  for (int i = 0; i < 3000; ++i) {
    paths = (*worker)->Explain(kPs);
    if (absl::StrContains(paths, "over shm: connected")) break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_TRUE(absl::StrContains(paths, "over shm: connected")) << paths;
  ASSERT_EQ(write(to[1], "\n", 1), 1);
  int child = 0;
  ASSERT_EQ(fscanf(said, " child %d", &child), 1);
  kill(ps, SIGKILL);
  waitpid(ps, nullptr, 0);
  {
    // The child holds the producer's socket open. A consumer that waits for the socket to close
    // gives up only when its `patience`, a minute, is over.
    MutexLock lock(&mu);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!over && !changed.WaitUntil(&mu, until)) {
    }
    EXPECT_TRUE(over) << (*worker)->Explain(kPs);
    EXPECT_TRUE(absl::IsAborted(ended) || absl::IsUnavailable(ended)) << ended;
  }
  kill(child, SIGKILL);
  (*worker)->steps()->CleanupAll();
  EXPECT_TRUE((*worker)->Stop(absl::Seconds(5)).ok());
  fclose(said);
  close(to[0]);
  close(to[1]);
  close(from[1]);
}

}  // namespace
}  // namespace tryst
