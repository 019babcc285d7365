// Two processes share memory, and one is killed with SIGKILL at a random moment, again and again.
// Afterwards: no tensor was torn, nobody waits for ever, delivered tensors can still be read, the
// survivor has all of its memory again, and nothing is left in /dev/shm or among the descriptors.
//
//   kill_test [--kills=N] [--seed=N]   the long run: --kills=10000

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "tests/process/shm/shm_process.h"

namespace tryst {
namespace {

int kills = 40;
uint64_t seed_of_all = 1;

constexpr int kEdges = 12;
// Inside a cell, by reference in the arena, staged in one part, and staged in several.
constexpr int64_t kWords[kEdges] = {1,      8,      12,     100,     1000, 8000,
                                    20'000, 40'000, 90'000, 200'000, 4,    500};

std::string Producer(int run) {
  return absl::StrCat("/job:p", getppid(), "r", run, "/replica:0/task:0");
}
std::string Consumer(int run) {
  return absl::StrCat("/job:c", getppid(), "r", run, "/replica:0/task:0");
}

// All words hold the same number and their index, so that a torn tensor shows.
void Fill(Tensor* tensor, uint64_t number) {
  uint64_t* words = static_cast<uint64_t*>(tensor->mutable_data());
  const int64_t count = tensor->shape().elements();
  for (int64_t i = 0; i < count; ++i) words[i] = number << 24 | static_cast<uint64_t>(i);
}
bool IsWhole(const Tensor& tensor) {
  const uint64_t* words = tensor.data_as<uint64_t>();
  const int64_t count = tensor.shape().elements();
  for (int64_t i = 0; i < count; ++i) {
    if (words[i] != ((words[0] >> 24) << 24 | static_cast<uint64_t>(i))) return false;
  }
  return true;
}

[[noreturn]] void Fail(const char* what) {
  fprintf(stderr, "kill_test: %s\n", what);
  _exit(3);
}

int CountFiles(const char* folder) {
  int count = 0;
  DIR* dir = opendir(folder);
  if (dir == nullptr) return 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}
int CountDescriptors() { return CountFiles("/proc/self/fd"); }

ShmProcess::Options ProcessOptions(const std::string& worker, bool pulls) {
  ShmProcess::Options options;
  options.worker = worker;
  options.arena_bytes = 32 << 20;
  options.shm.sizes.references = 64;
  options.shm.stage_bytes = 4 << 20;
  options.shm.pull_bytes = 4 << 10;
  options.shm.parts_bytes = 200 << 10;
  options.shm.allow_pull = pulls;
  return options;
}

// Sends for ever, half of the tensors from the arena. When it is told to end, it first checks that
// the dead consumer no longer holds anything of its arena, nor a socket.
void Produce(int run, int stop_fd, bool pulls) {
  ShmProcess process(ProcessOptions(Producer(run), pulls));
  const auto links = [&] {
    size_t count = 0;
    process.poller()->RunAndWait([&] {
      process.path()->Maintain();
      count = process.path()->serving().size();
    });
    return count;
  };
  std::vector<TensorKey> keys;
  for (int i = 0; i < kEdges; ++i) {
    keys.push_back(ShmProcess::Key(Producer(run), Consumer(run), absl::StrCat("e", i)));
  }
  if (write(stop_fd, "r", 1) != 1) Fail("no pipe");  // It is ready.
  std::atomic<int> out{0};
  uint64_t number = 1;
  for (;;) {
    char word;
    if (recv(stop_fd, &word, 1, MSG_DONTWAIT) >= 0) break;
    if (out.load() > 64) {
      usleep(100);
      continue;
    }
    const size_t edge = ++number % kEdges;
    absl::StatusOr<Tensor> made =
        number % 2 == 0 ? process.arena()->AllocateTensor(DType::kUint64, {kWords[edge]})
                        : absl::StatusOr<Tensor>(absl::UnavailableError(""));
    if (!made.ok()) made = Tensor::Allocate(DType::kUint64, {kWords[edge]});
    Fill(&*made, number);
    out.fetch_add(1);
    Tensor counted = *Tensor::Adopt(made->mutable_data(), DType::kUint64, {kWords[edge]},
                                    made->space(), [tensor = *made, &out] { out.fetch_sub(1); });
    *made = Tensor();
    if (!process.step()->Send(keys[edge], SendArgs(), std::move(counted), false).ok()) {
      Fail("a send failed");
    }
  }
  process.step()->StartAbort(absl::CancelledError("over"));
  for (int i = 0; process.arena()->counters().used_bytes != 0; ++i) {
    if (i == 5000) Fail("a dead consumer's references are not taken back");
    usleep(1000);
  }
  while (out.load() > 0) usleep(1000);
  for (int i = 0; links() != 0; ++i) {
    if (i == 5000) Fail("the link of a dead consumer stays");
    usleep(1000);
  }
}

// Fetches for ever, holds some tensors and cancels some fetches. When the producer is dead, every
// fetch must fail, and the held tensors must still be readable.
void Consume(int run, int stop_fd, uint64_t seed, bool pulls) {
  struct State {
    Mutex mu;
    int out = 0;
    bool gone = false;
    bool met = false;
    std::deque<Tensor> held;
  } state;
  {
    ShmProcess process(ProcessOptions(Consumer(run), pulls));
    if (write(stop_fd, "r", 1) != 1) Fail("no pipe");
    std::mt19937_64 random(seed);
    for (;;) {
      {
        MutexLock lock(&state.mu);
        if (state.gone) break;
      }
      char word;
      if (recv(stop_fd, &word, 1, MSG_DONTWAIT) >= 0) break;
      const size_t edge = random() % kEdges;
      RecvArgs args;
      if (random() % 4 == 0) {
        args.destination = *Tensor::Allocate(DType::kUint64, {kWords[edge]});
      }
      if (random() % 8 == 0) args.deadline = Deadline::After(SteadyClock(), absl::Microseconds(50));
      {
        MutexLock lock(&state.mu);
        if (state.out > 40) {
          // Avoids a busy loop.
        } else {
          ++state.out;
          process.poller()->PostFn([&, args, edge] {
            process.Channel(Producer(run))
                ->Fetch(1, ShmProcess::Key(Producer(run), Consumer(run), absl::StrCat("e", edge)),
                        args, [&](Received&& received) {
                          if (received.status.ok() && !IsWhole(received.tensor))
                            Fail("a received.tensor is torn");
                          MutexLock done(&state.mu);
                          --state.out;
                          if (absl::IsUnavailable(received.status)) state.gone = true;
                          if (received.status.ok() && !std::exchange(state.met, true)) {
                            // The test may no longer read.
                            if (send(stop_fd, "m", 1, MSG_NOSIGNAL) != 1) state.gone = true;
                          }
                          if (received.status.ok())
                            state.held.push_back(std::move(received.tensor));
                          if (state.held.size() > 20) state.held.pop_front();
                        });
          });
          continue;
        }
      }
      usleep(50);
    }
    // Fetches that were requested end at once with the producer; those that were not wait for
    // another one.
    for (int i = 0;; ++i) {
      bool connected = false;
      process.poller()->RunAndWait([&] { connected = process.Channel(Producer(run))->open(); });
      if (!connected) break;
      if (i == 5000) Fail("the end of the producer goes unnoticed");
      usleep(1000);
    }
  }
  // The producer is dead and the channel closed, but the delivered tensors are complete.
  MutexLock lock(&state.mu);
  for (const Tensor& tensor : state.held) {
    if (!IsWhole(tensor)) Fail("a held tensor changed after its producer died");
  }
  state.held.clear();
}

struct Child {
  pid_t pid = 0;
  int fd = -1;
};

template <typename Body>
Child Start(const Body& body) {
  int ends[2];
  TRYST_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    const int descriptors = CountDescriptors();
    body(ends[1]);
    if (CountDescriptors() != descriptors) Fail("descriptors are left");
    _exit(0);
  }
  close(ends[1]);
  child.fd = ends[0];
  char ready;
  EXPECT_EQ(read(child.fd, &ready, 1), 1);
  return child;
}

void EndWell(const Child& child, const char* who, int run) {
  close(child.fd);  // This tells it to end; a consumer ends by itself.
  int status = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (waitpid(child.pid, &status, WNOHANG) == child.pid) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << who << " of run " << run << ": status " << status;
      return;
    }
    usleep(1000);
  }
  kill(child.pid, SIGKILL);
  waitpid(child.pid, &status, 0);
  ADD_FAILURE() << "the surviving " << who << " of run " << run << " is stuck";
}

TEST(KillTest, NothingIsTornStuckOrLeftBehind) {
  const int files_before = CountFiles("/dev/shm");
  const int descriptors_before = CountDescriptors();
  std::mt19937_64 random(seed_of_all);
  int met = 0;
  int done = 0;
  for (int run = 0; run < kills && !HasFailure(); ++run) {
    const uint64_t seed = random();
    const bool pulls = run % 2 == 0;
    const Child producer = Start([&](int fd) { Produce(run, fd, pulls); });
    const Child consumer = Start([&](int fd) { Consume(run, fd, seed, pulls); });
    // Mostly in the middle of a transfer, sometimes while they still connect.
    pollfd wait{consumer.fd, POLLIN, 0};
    if (run % 4 != 0) met += poll(&wait, 1, 2000) == 1 ? 1 : 0;
    usleep(static_cast<useconds_t>(random() % 10'000));
    const bool kill_producer = run / 2 % 2 == 0;
    const Child& victim = kill_producer ? producer : consumer;
    ASSERT_EQ(kill(victim.pid, SIGKILL), 0);
    int status;
    ASSERT_EQ(waitpid(victim.pid, &status, 0), victim.pid);
    // It must have ended by the kill.
    ASSERT_TRUE(WIFSIGNALED(status)) << "status " << status << " in run " << run;
    close(victim.fd);
    if (kill_producer) {
      EndWell(consumer, "consumer", run);
    } else {
      EndWell(producer, "producer", run);
    }
    ++done;
  }
  EXPECT_EQ(CountFiles("/dev/shm"), files_before);
  EXPECT_EQ(CountDescriptors(), descriptors_before);
  EXPECT_GT(met, kills / 2);
  printf("%d of %d pairs had delivered tensors when one was killed\n", met, done);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (strncmp(argv[i], "--kills=", 8) == 0) tryst::kills = atoi(argv[i] + 8);
    if (strncmp(argv[i], "--seed=", 7) == 0)
      tryst::seed_of_all = strtoull(argv[i] + 7, nullptr, 10);
  }
  return RUN_ALL_TESTS();
}
