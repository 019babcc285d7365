// trystd and tryst as real processes on the loopback.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/npy.h"
#include "server/test_certificates.h"

namespace tryst {
namespace {

std::string TempFile(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", name);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

class Process {
 public:
  Process(const std::string& program, std::vector<std::string> args) {
    static int count = 0;
    out_ = TempFile(absl::StrCat("out", ++count));
    err_ = TempFile(absl::StrCat("err", count));
    unlink(out_.c_str());  // Of an earlier run by hand.
    unlink(err_.c_str());
    args.insert(args.begin(), absl::StrCat("server/", program));
    pid_ = fork();
    if (pid_ != 0) return;
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(&arg[0]);
    argv.push_back(nullptr);
    dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  void Signal(int signal) { kill(pid_, signal); }
  // The exit code; -1: still there after `timeout`, or killed.
  int Wait(absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time until = absl::Now() + timeout;
    while (absl::Now() < until) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return -1;
  }
  bool Running() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) == 0) return pid_ > 0;
    pid_ = -1;
    return false;
  }
  // "serving WORKER at ADDRESS ...": ADDRESS.
  std::string Address() {
    for (int i = 0; i < 4000 && Running(); ++i) {
      const std::string text = out();
      if (absl::EndsWith(text, "\n")) {
        const std::vector<std::string> words = absl::StrSplit(text, ' ');
        return words.size() > 3 ? words[3] : "";
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    ADD_FAILURE() << "does not serve: " << err();
    return "";
  }
  std::string out() const { return ReadFile(out_); }
  std::string err() const { return ReadFile(err_); }

 private:
  pid_t pid_ = -1;
  std::string out_;
  std::string err_;
};

std::string WriteFloats(const std::string& name, int64_t count, float first) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, TensorShape({count}));
  for (int64_t i = 0; i < count; ++i) {
    static_cast<float*>(tensor.mutable_data())[i] = first + static_cast<float>(i);
  }
  EXPECT_TRUE(WriteNpy(TempFile(name), tensor).ok());
  return TempFile(name);
}

constexpr char kSource[] = "/job:src/replica:0/task:0";
constexpr char kSink[] = "/job:dst/replica:0/task:0";

std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<std::string> Self(const std::string& job, int port = 0) {
  return {"--insecure", "--open_cluster", "--nic=soft", absl::StrCat("--job=", job),
          absl::StrCat("--listen=127.0.0.1:", port)};
}

TEST(Processes, FilesTravelOnEveryProtocol) {
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    const std::string file = WriteFloats("in.npy", 3 << 20, 1);  // 12 MiB
    Process source("tryst", With({"serve", absl::StrCat("w=", file), absl::StrCat("--to=", kSink),
                                  absl::StrCat("--protocol=", protocol)},
                                 Self("src")));
    const std::string at = absl::StrCat(kSource, "@", source.Address());
    Process sink("tryst", With({"recv", "w", TempFile("out.npy"), absl::StrCat("--from=", at),
                                absl::StrCat("--protocol=", protocol)},
                               Self("dst")));
    ASSERT_EQ(sink.Wait(), 0) << sink.err() << source.err();
    EXPECT_TRUE(ReadFile(file) == ReadFile(TempFile("out.npy")));
    const bool by_rdma = absl::StrContains(sink.out(), "over rdma/soft");
    EXPECT_EQ(by_rdma, std::string(protocol) == "grpc+verbs") << sink.out();
    source.Signal(SIGTERM);
    EXPECT_EQ(source.Wait(), 0) << source.err();
  }
}

TEST(Processes, AnEarlyRequesterALateJoinerAndARestart) {
  const int port = FreePort();
  const std::string at = absl::StrCat(kSource, "@127.0.0.1:", port);
  const std::vector<std::string> recv =
      With({"recv", "w", TempFile("late.npy"), absl::StrCat("--from=", at)}, Self("dst"));
  Process early("tryst", recv);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(early.Running());
  const auto serve = [&](const std::string& file) {
    return With({"serve", absl::StrCat("w=", file), absl::StrCat("--to=", kSink)},
                Self("src", port));
  };
  {
    Process source("tryst", serve(WriteFloats("one.npy", 10, 1)));
    ASSERT_EQ(early.Wait(), 0) << early.err() << source.err();
    EXPECT_TRUE(ReadFile(TempFile("late.npy")) == ReadFile(TempFile("one.npy")));
    source.Signal(SIGKILL);
    source.Wait();
  }
  // The next life, at the same address with another incarnation.
  Process source("tryst", serve(WriteFloats("two.npy", 10, 2)));
  Process again("tryst", recv);
  ASSERT_EQ(again.Wait(), 0) << again.err();
  EXPECT_TRUE(ReadFile(TempFile("late.npy")) == ReadFile(TempFile("two.npy")));
}

TEST(Processes, AProducerKilledWhileAPeerWaitsIsToldApartFromItsNextLife) {
  const int port = FreePort();
  auto source = std::make_unique<Process>("trystd", Self("src", port));
  source->Address();
  Process waits("tryst", With({"recv", "never", TempFile("never.npy"),
                               absl::StrCat("--from=", kSource, "@127.0.0.1:", port)},
                              Self("dst")));
  waits.Address();
  absl::SleepFor(absl::Milliseconds(200));
  source->Signal(SIGKILL);
  source->Wait();
  source = std::make_unique<Process>("trystd", Self("src", port));
  source->Address();
  EXPECT_EQ(waits.Wait(), 1);
  EXPECT_TRUE(absl::StrContains(waits.err(), "ABORTED")) << waits.err();
}

TEST(Processes, StrangersAreShutOutWithAReason) {
  TestAuthority authority;
  TestAuthority impostors;
  const auto tls = [](const TestAuthority& from, const std::string& name, const std::string& uri) {
    mkdir(TempFile(name).c_str(), 0700);
    from.Write(TempFile(name), uri);
    return std::vector<std::string>{
        absl::StrCat("--ca_file=", TempFile(name), "/ca.pem"),
        absl::StrCat("--certificate_file=", TempFile(name), "/cert.pem"),
        absl::StrCat("--key_file=", TempFile(name), "/key.pem")};
  };
  Process daemon("trystd",
                 With(tls(authority, "daemon", "tryst://tryst/job:src"),
                      {"--job=src", "--open_cluster", "--listen=127.0.0.1:0", "--nic=soft"}));
  const std::string at = absl::StrCat(kSource, "@", daemon.Address());
  const auto ping = [&](std::vector<std::string> more) {
    auto process =
        std::make_unique<Process>("tryst", With({"ping", at, "--timeout=2s"}, std::move(more)));
    process->Wait();
    return absl::StrCat(process->out(), process->err());
  };
  EXPECT_TRUE(
      absl::StrContains(ping(tls(authority, "right", "tryst://tryst/job:cli")), "incarnation"));
  // Another authority never gets through the handshake.
  EXPECT_FALSE(
      absl::StrContains(ping(tls(impostors, "wrong", "tryst://tryst/job:cli")), "incarnation"));
  EXPECT_TRUE(absl::StrContains(ping(tls(authority, "masked", "tryst://tryst/job:src")),
                                "UNAUTHENTICATED"));
  std::vector<std::string> elsewhere = tls(authority, "elsewhere", "tryst://factory");
  elsewhere.push_back("--cluster=factory");
  EXPECT_FALSE(absl::StrContains(ping(elsewhere), "incarnation"));
  EXPECT_FALSE(absl::StrContains(ping({"--insecure"}), "incarnation"));
  EXPECT_TRUE(daemon.Running());
}

TEST(Processes, GarbageDoesNotBringADaemonDown) {
  Process daemon("trystd", Self("src"));
  const std::string address = daemon.Address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\n\r\n", std::string(100000, '\xff'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(100000, '\x01'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  // ... and then nothing: half open.
  };
  std::vector<int> open;
  for (const std::string& bytes : garbage) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(port));
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    open.push_back(fd);
  }
  Process ping("tryst", {"ping", absl::StrCat(kSource, "@", address), "--insecure"});
  EXPECT_EQ(ping.Wait(), 0) << ping.err() << daemon.err();
  for (int fd : open) close(fd);
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
}

TEST(Processes, AClusterFileMovesAWorkerAtRunTime) {
  const std::string file = TempFile("cluster.json");
  const auto write = [&](int port) {
    std::ofstream(file + ".new") << absl::StrCat(
        R"({"job": [{"name": "dst", "tasks": {"0": "127.0.0.1:1"}},)",
        R"({"name": "src", "tasks": {"0": "127.0.0.1:)", port, R"("}}]})");
    rename((file + ".new").c_str(), file.c_str());
  };
  write(1);  // Nobody.
  Process sink("tryst", {"recv", "w", TempFile("moved.npy"), absl::StrCat("--from=", kSource),
                         "--insecure", "--job=dst", "--listen=127.0.0.1:0", "--nic=soft",
                         "--resolver=file", absl::StrCat("--cluster_file=", file)});
  sink.Address();
  const std::string npy = WriteFloats("moves.npy", 4, 1);
  const int port = FreePort();
  Process source("tryst", {"serve", absl::StrCat("w=", npy), absl::StrCat("--to=", kSink),
                           "--insecure", "--job=src", "--nic=soft",
                           absl::StrCat("--cluster_spec=dst=127.0.0.1:1;src=127.0.0.1:", port)});
  source.Address();
  write(port);
  ASSERT_EQ(sink.Wait(), 0) << sink.err();
  EXPECT_TRUE(ReadFile(TempFile("moved.npy")) == ReadFile(npy));
}

TEST(Processes, WhatMakesNoSenseIsSaidAtOnce) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--job=ps", "--open_cluster"}, "nobody can be told"},
      {{"--job=ps", "--open_cluster", "--listen=127.0.0.1:0"}, "0 ways of security"},
      {{"--insecure", "--job=ps", "--listen=0.0.0.0:0", "--open_cluster", "--advertise=h:1"},
       "can be reached by others"},
      {{"--insecure", "--job=ps", "--protocol=grpc+gdr", "--open_cluster"}, "there are: grpc"},
      {{"--tusk=1"}, "no flag --tusk"},
      {{"--insecure", "--job=ps", "--open_cluster", "--memory_bytes=1MiB"}, "do not add up"},
      {{"--insecure", "--job=ps", "--cluster_spec=worker=127.0.0.1:1"}, "not in its own cluster"},
  };
  for (const auto& [args, why] : cases) {
    Process daemon("trystd", args);
    EXPECT_EQ(daemon.Wait(), 1);
    EXPECT_TRUE(absl::StrContains(daemon.err(), why)) << daemon.err();
  }
}

}  // namespace
}  // namespace tryst
