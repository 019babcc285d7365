// A consumer is stopped with SIGSTOP when it has read a tensor out of its producer's memory and has
// not yet looked whether that was lent still. Meanwhile the producer may end the session, take the
// tensor back and write something else there. The consumer then goes on: it must never deliver what
// is not the tensor, and nothing may be both delivered and taken back.
//
//   stop_test [--stops=N]   the long run: --stops=10000

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/process/shm/link_fault.h"
#include "tests/process/shm/shm_process.h"

namespace tryst {
namespace {

int stops = 200;

constexpr int64_t kBytes = 200'000;
constexpr int kWays = 3;

ShmProcess::Options ProcessOptions(const std::string& worker) {
  ShmProcess::Options options;
  options.worker = worker;
  options.arena_bytes = 8 << 20;
  options.shm.pull_bytes = 4 << 10;
  options.shm.parts_bytes = 8 << 20;
  return options;
}

bool Tell(int fd, char word) { return send(fd, &word, 1, MSG_NOSIGNAL) == 1; }
char Hear(int fd) {
  char word;
  return read(fd, &word, 1) == 1 ? word : 0;
}

// Fetches whenever it is told to, and says what came: 'o' the tensor, 'w' something else, 'u' an
// error, 'n' this machine's kernel lets nobody read another's memory.
[[noreturn]] void Consume(const std::string& producer, const std::string& consumer, int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
  ShmProcess::Options options = ProcessOptions(consumer);
  bool read = false;
  options.shm.before_check = [&read] {
    read = true;
    raise(SIGSTOP);
  };
  ShmProcess process(options);
  if (!Tell(fd, 'r')) _exit(2);
  for (uint8_t number = 1; Hear(fd) == 'f'; ++number) {
    RecvArgs args;
    args.destination = *Tensor::Allocate(DType::kUint8, {kBytes});
    read = false;
    process.poller()->PostFn([&, args, number] {
      process.Channel(producer)->Fetch(
          1, ShmProcess::Key(producer, consumer, "e"), args, [&, number](Received&& received) {
            if (!received.status.ok()) return (void)Tell(fd, 'u');
            const uint8_t* const at = received.tensor.data_as<uint8_t>();
            const bool whole = at[0] == number && memcmp(at, at + 1, kBytes - 1) == 0;
            Tell(fd, !read ? 'n' : whole ? 'o' : 'w');
          });
    });
  }
  _exit(0);
}

TEST(StopTest, WhatWasTakenBackIsNeverDelivered) {
  const std::string producer = absl::StrCat("/job:p", getpid(), "/replica:0/task:0");
  const std::string consumer = absl::StrCat("/job:c", getpid(), "/replica:0/task:0");
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    Consume(producer, consumer, ends[1]);
  }
  close(ends[1]);
  const int fd = ends[0];
  ASSERT_EQ(Hear(fd), 'r');
  int delivered = 0, taken_back = 0;
  {
    ShmProcess process(ProcessOptions(producer));
    const TensorKey key = ShmProcess::Key(producer, consumer, "e");
    for (int i = 0; i < stops && !HasFailure(); ++i) {
      const int way = i % kWays;
      const uint8_t number = static_cast<uint8_t>(i + 1);
      const Tensor tensor = *Tensor::Allocate(DType::kUint8, {kBytes});
      uint8_t* const bytes = static_cast<uint8_t*>(tensor.mutable_data());
      memset(bytes, number, kBytes);
      ASSERT_TRUE(
          process.step()
              ->Send(key, SendArgs(),
                     *Tensor::Adopt(bytes, DType::kUint8, {kBytes}, tensor.space(), [tensor] {}),
                     false)
              .ok());
      ASSERT_TRUE(Tell(fd, 'f'));
      int status = 0;
      while (waitpid(child, &status, WUNTRACED | WNOHANG) == 0) {
        char word;
        if (recv(fd, &word, 1, MSG_DONTWAIT) == 1) {
          if (word == 'n') {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            process.step()->StartAbort(absl::CancelledError("over"));
            GTEST_SKIP() << "the kernel does not let the two read each other's memory";
          }
          FAIL() << "it ends without a stop: " << word << " in round " << i;
        }
        usleep(20);
      }
      ASSERT_TRUE(WIFSTOPPED(status)) << status;
      bool back = false;
      if (way == 1) {
        // Its session ends, as if another process of its name had come.
        process.poller()->RunAndWait(
            [&] { process.path()->own_consumers()->NotePeer(consumer, 4711); });
        process.step()->RecvAsync(key, RecvArgs(), [&](Received&& received) {
          back = received.status.ok() && received.tensor.data_as<uint8_t>()[0] == number;
        });
        EXPECT_TRUE(back) << "the tensor is lost in round " << i;
        memset(bytes, 0xee, kBytes);  // Its memory is used for something else.
      } else if (way == 2) {
        // The link breaks, and the session lives on.
        process.poller()->RunAndWait([&] { SayNonsense(LinkSide::kProducer); });
      }
      ASSERT_EQ(kill(child, SIGCONT), 0);
      const char word = Hear(fd);
      EXPECT_EQ(word, back ? 'u' : 'o') << "round " << i;
      delivered += word == 'o';
      taken_back += back;
    }
    close(fd);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    process.step()->StartAbort(absl::CancelledError("over"));
  }
  printf("%d delivered, %d taken back while the consumer stood still\n", delivered, taken_back);
  EXPECT_GT(delivered, stops / 2);
  EXPECT_GE(taken_back, stops / kWays - 1);
}

}  // namespace
}  // namespace tryst

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (strncmp(argv[i], "--stops=", 8) == 0) tryst::stops = atoi(argv[i] + 8);
  }
  return RUN_ALL_TESTS();
}
