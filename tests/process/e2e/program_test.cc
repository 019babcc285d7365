// trystd and tryst as real processes on the loopback.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/cli/npy.h"
#include "tests/doubles/server/cut_proxy.h"
#include "tests/doubles/server/test_certificates.h"
#include "tests/process/e2e/free_port.h"
#include "tests/process/e2e/process.h"

namespace tryst {
namespace {

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

std::vector<std::string> Self(const std::string& job, int port = 0) {
  return {"--insecure", "--open_cluster", "--nic=soft", absl::StrCat("--job=", job),
          absl::StrCat("--listen=127.0.0.1:", port)};
}

TEST(Processes, FilesTravelByEveryWay) {
  for (const auto& [path, flags] : std::map<std::string, std::vector<std::string>>{
           {"grpc", {"--protocol=grpc"}}, {"rdma/soft", {}}, {"shm", {"--nic=auto"}}}) {
    const std::string file = WriteFloats("in.npy", 3 << 20, 1);  // 12 MiB
    Process source("server/tryst",
                   With({"serve", absl::StrCat("w=", file), absl::StrCat("--to=", kSink)},
                        With(Self("src"), flags)));
    const std::string at = absl::StrCat(kSource, "@", source.Address());
    Process sink("server/tryst",
                 With({"recv", "w", TempFile("out.npy"), absl::StrCat("--from=", at)},
                      With(Self("dst"), flags)));
    ASSERT_EQ(sink.Wait(), 0) << sink.err() << source.err();
    EXPECT_TRUE(ReadFile(file) == ReadFile(TempFile("out.npy")));
    for (const char* fast : {"rdma/soft", "shm"}) {
      const bool taken = absl::StrContains(sink.out(), absl::StrCat("over ", fast, ": connected"));
      EXPECT_EQ(taken, path == fast) << sink.out();
    }
    source.Signal(SIGTERM);
    EXPECT_EQ(source.Wait(), 0) << source.err();
  }
}

TEST(Processes, AnEarlyRequesterALateJoinerAndARestart) {
  const int port = FreePort();
  const std::string at = absl::StrCat(kSource, "@127.0.0.1:", port);
  const std::vector<std::string> recv =
      With({"recv", "w", TempFile("late.npy"), absl::StrCat("--from=", at)}, Self("dst"));
  Process early("server/tryst", recv);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(early.Running());
  const auto serve = [&](const std::string& file) {
    return With({"serve", absl::StrCat("w=", file), absl::StrCat("--to=", kSink)},
                Self("src", port));
  };
  {
    Process source("server/tryst", serve(WriteFloats("one.npy", 10, 1)));
    ASSERT_EQ(early.Wait(), 0) << early.err() << source.err();
    EXPECT_TRUE(ReadFile(TempFile("late.npy")) == ReadFile(TempFile("one.npy")));
    source.Signal(SIGKILL);
    source.Wait();
  }
  // The next incarnation, at the same address.
  Process source("server/tryst", serve(WriteFloats("two.npy", 10, 2)));
  Process again("server/tryst", recv);
  ASSERT_EQ(again.Wait(), 0) << again.err();
  EXPECT_TRUE(ReadFile(TempFile("late.npy")) == ReadFile(TempFile("two.npy")));
}

TEST(Processes, AProducerKilledWhileAPeerWaitsIsToldApartFromItsNextLife) {
  const int port = FreePort();
  auto source = std::make_unique<Process>("server/trystd", Self("src", port));
  source->Address();
  Process waits("server/tryst", With({"recv", "never", TempFile("never.npy"),
                                      absl::StrCat("--from=", kSource, "@127.0.0.1:", port)},
                                     Self("dst")));
  waits.Address();
  absl::SleepFor(absl::Milliseconds(200));
  source->Signal(SIGKILL);
  source->Wait();
  source = std::make_unique<Process>("server/trystd", Self("src", port));
  source->Address();
  EXPECT_EQ(waits.Wait(), 1);
  EXPECT_TRUE(absl::StrContains(waits.err(), "ABORTED")) << waits.err();
}

TEST(Processes, StrangersAreShutOutWithAReason) {
  TestAuthority authority;
  TestAuthority impostors;
  const auto tls = [](const TestAuthority& from, const std::string& name, const std::string& uri,
                      int64_t lasts_s = 86400) {
    mkdir(TempFile(name).c_str(), 0700);
    from.Write(TempFile(name), uri, lasts_s);
    return std::vector<std::string>{
        absl::StrCat("--ca_file=", TempFile(name), "/ca.pem"),
        absl::StrCat("--certificate_file=", TempFile(name), "/cert.pem"),
        absl::StrCat("--key_file=", TempFile(name), "/key.pem")};
  };
  Process daemon("server/trystd",
                 With(tls(authority, "daemon", "tryst://tryst/job:src"),
                      {"--job=src", "--open_cluster", "--listen=127.0.0.1:0", "--nic=soft"}));
  const std::string at = absl::StrCat(kSource, "@", daemon.Address());
  const auto ping = [&](std::vector<std::string> more) {
    auto process = std::make_unique<Process>("server/tryst",
                                             With({"ping", at, "--timeout=2s"}, std::move(more)));
    process->Wait();
    return absl::StrCat(process->out(), process->err());
  };
  EXPECT_TRUE(
      absl::StrContains(ping(tls(authority, "right", "tryst://tryst/job:cli")), "incarnation"));
  const auto says = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      if (!absl::StrContains(text, part)) {
        return testing::AssertionFailure() << "no '" << part << "' in: " << text;
      }
    }
    return testing::AssertionResult(!absl::StrContains(text, "incarnation")) << text;
  };
  // A caller whose handshake fails is told which side rejected what.
  EXPECT_TRUE(says(ping(tls(impostors, "wrong", "tryst://tryst/job:cli")),
                   {"UNAVAILABLE", "127.0.0.1", "was signed by /CN=tryst test authority",
                    "which our ca_file", "wrong/ca.pem does not hold"}));
  EXPECT_TRUE(says(ping(tls(authority, "expired", "tryst://tryst/job:cli", -3600)),
                   {"INVALID_ARGUMENT", "expired/cert.pem", "has expired"}));
  std::vector<std::string> unknown = tls(impostors, "unknown", "tryst://tryst/job:cli");
  unknown[0] = absl::StrCat("--ca_file=", TempFile("right"), "/ca.pem");
  EXPECT_TRUE(says(ping(unknown), {"UNAVAILABLE", "does not accept our certificate",
                                   "does its ca_file hold", "unknown/cert.pem?"}));
  EXPECT_TRUE(says(ping(tls(authority, "masked", "tryst://tryst/job:src")),
                   {"UNAUTHENTICATED", "/job:cli/replica:0/task:0", "certificate names",
                    "tryst://tryst/job:src"}));
  std::vector<std::string> elsewhere = tls(authority, "elsewhere", "tryst://factory");
  elsewhere.push_back("--cluster=factory");
  // The caller finds that the daemon's certificate names another cluster.
  EXPECT_TRUE(
      says(ping(elsewhere), {"UNAVAILABLE", "names tryst://tryst/job:src, not",
                             "of cluster factory", "is its certificate for tryst://factory"}));
  EXPECT_TRUE(says(ping({"--insecure"}), {"UNAVAILABLE", "without TLS", "set certificate_file"}));
  EXPECT_TRUE(daemon.Running());

  // A daemon whose certificate expires while it runs, and one that uses no TLS.
  const std::vector<std::string> right = tls(authority, "right", "tryst://tryst/job:cli");
  const auto ping_at = [&](const std::vector<std::string>& flags, absl::Duration after = {}) {
    Process other("server/trystd", With(flags, {"--job=src", "--open_cluster", "--nic=soft",
                                                "--listen=127.0.0.1:0"}));
    other.Address();
    absl::SleepFor(after);
    Process process(
        "server/tryst",
        With({"ping", absl::StrCat(kSource, "@", other.Address()), "--timeout=2s"}, right));
    EXPECT_EQ(process.Wait(), 1);
    return process.err();
  };
  EXPECT_TRUE(
      says(ping_at(tls(authority, "late", "tryst://tryst/job:src", 10), absl::Seconds(12)),
           {"UNAVAILABLE", "certificate of the process at", "expired at", "renew it there"}));
  EXPECT_TRUE(says(ping_at({"--insecure"}), {"UNAVAILABLE", "does not speak TLS"}));

  // A worker that fetches says the same of the peer, over either protocol.
  for (const char* protocol : {"grpc", "grpc+verbs"}) {
    Process sink("server/tryst",
                 With({"recv", "w", TempFile("no.npy"), absl::StrCat("--from=", at), "--timeout=2s",
                       "--job=dst", "--open_cluster", "--listen=127.0.0.1:0", "--nic=soft",
                       absl::StrCat("--protocol=", protocol)},
                      tls(impostors, "dst", "tryst://tryst/job:dst")));
    EXPECT_EQ(sink.Wait(), 1);
    EXPECT_TRUE(says(sink.err().substr(sink.err().rfind("tryst: ")),
                     {"was signed by /CN=tryst test authority", "ca_file"}));
  }
}

// Scripts rely on the exit status and on how soon it comes.
TEST(Processes, ExitStatusesAreAsDocumented) {
  Process daemon("server/trystd", Self("src"));
  const std::string at = absl::StrCat(kSource, "@", daemon.Address());
  const std::string nobody = absl::StrCat(kSource, "@127.0.0.1:", FreePort());
  const struct {
    int code;
    std::vector<std::string> args;
    const char* says;
  } cases[] = {
      {0, {"ping", at, "--insecure"}, "incarnation"},
      {0, {"--help"}, "Exit status"},
      {0, {"ping", "--help"}, "tryst ping WORKER"},
      {1, {"ping", nobody, "--insecure"}, "nobody listens at 127.0.0.1"},
      {1, {"begin", nobody, "--insecure", "--timeout=1s"}, "is it running"},
      {1,
       {"serve", "w=missing.npy", absl::StrCat("--to=", kSink), "--insecure", "--job=src",
        "--open_cluster", "--listen=127.0.0.1:0"},
       "missing.npy"},
      {2, {}, "no command"},
      {2, {"pong"}, "there are: ping"},
      {2, {"ping", "nonsense", "--insecure"}, "'nonsense' is not a worker's name"},
      {2, {"ping", kSource, "--insecure"}, "the address of /job:src"},
      {2, {"ping", absl::StrCat(kSource, "@host"), "--insecure"}, "'host' of"},
      {2, {"ping", absl::StrCat(kSource, "@host:port"), "--insecure"}, "is not host:port"},
      {2, {"ping", at}, "0 ways of security"},
      {2, {"ping", at, "--insecure", "--timeout=soon"}, "--timeout"},
      {2, {"ping", at, "--insecure", "--tusk=1"}, "--tusk"},
      {2, {"explain", "ps", "--insecure"}, "'ps' is not a worker's name"},
      {2, {"waiting", "--insecure"}, "no worker to ask"},
      {2,
       {"serve", "a.npy", "--insecure", "--job=src", absl::StrCat("--to=", kSink)},
       "weights=a.npy"},
      {2, {"serve", "w=a.npy", "--insecure", "--job=src"}, "serve needs --to"},
      {2, {"serve", "w=a.npy", "--insecure", absl::StrCat("--to=", kSink)}, "--job=NAME"},
      {2, {"send", "w", "a.npy", "--insecure", "--job=src", "--to=dst:0"}, "--to 'dst:0' is no"},
      {2, {"recv", "w", "a.npy", "--insecure", "--job=dst"}, "recv needs --from"},
      {2, {"recv", "w", "a.npy", "--insecure", "--job=dst", "--from=src"}, "--from 'src' is no"},
      {3, {"trace", at, "no_such_key", "--insecure"}, "0 shown"},
      {1,
       {"bench", nobody, "--insecure", "--job=dst", "--open_cluster", "--listen=127.0.0.1:0",
        "--timeout=1s"},
       "127.0.0.1"},
      {1,
       {"recv", "w;w", TempFile("no.npy"), absl::StrCat("--from=", at), "--insecure", "--job=dst",
        "--open_cluster", "--listen=127.0.0.1:0"},
       "w;w"},
  };
  for (const auto& [code, args, says] : cases) {
    const absl::Time start = absl::Now();
    Process tryst("server/tryst", args);
    EXPECT_EQ(tryst.Wait(), code) << absl::StrJoin(args, " ") << tryst.err();
    EXPECT_LT(absl::Now() - start, absl::Seconds(code == 1 ? 9 : 4)) << absl::StrJoin(args, " ");
    const std::string said = absl::StrCat(tryst.out(), tryst.err());
    EXPECT_TRUE(absl::StrContains(said, says)) << absl::StrJoin(args, " ") << said;
  }
}

// The clock of the day is set back by an hour while a sender waits for a consumer.
TEST(Processes, ASetBackClockOfTheDayDoesNotLengthenATimeout) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "needs a program that no sanitizer has to be loaded into first";
#endif
  constexpr char kHarm[] = "tests/attack/audit/libharm.so";
  const std::string harm = TempFile("harm");
  const int64_t before[] = {0, 0}, behind[] = {-3'600'000'000'000, 0};  // harm_t of harm.c.
  const int shared = open(harm.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_EQ(pwrite(shared, before, sizeof(before), 0), static_cast<ssize_t>(sizeof(before)));
  const std::string file = WriteFloats("late.npy", 100, 1);
  setenv("LD_PRELOAD", kHarm, 1);
  setenv("TRYST_AUDIT_HARM", harm.c_str(), 1);
  Process sender(
      "server/tryst",
      With({"send", "w", file, absl::StrCat("--to=", kSink), "--timeout=2s"}, Self("src")));
  unsetenv("LD_PRELOAD");
  unsetenv("TRYST_AUDIT_HARM");
  ASSERT_FALSE(sender.Address().empty());
  absl::SleepFor(absl::Seconds(1));  // It has sent, and waits.
  EXPECT_EQ(pwrite(shared, behind, sizeof(behind), 0), static_cast<ssize_t>(sizeof(behind)));
  close(shared);
  EXPECT_EQ(sender.Wait(), 1) << sender.err();
  EXPECT_TRUE(absl::StrContains(sender.err(), "within --timeout")) << sender.err();
}

// The peer is up but silent, as if it were stopped in a debugger or swapped out.
TEST(Processes, AFrozenPeerIsNamedAndServesWhenItThaws) {
  const std::string file = WriteFloats("frozen.npy", 100, 1);
  Process source(
      "server/tryst",
      With({"serve", absl::StrCat("w=", file), absl::StrCat("--to=", kSink)}, Self("src")));
  const std::string at = absl::StrCat(kSource, "@", source.Address());
  const auto recv = [&](const char* timeout) {
    return With({"recv", "w", TempFile("thawed.npy"), absl::StrCat("--from=", at),
                 absl::StrCat("--timeout=", timeout)},
                Self("dst"));
  };
  source.Signal(SIGSTOP);
  const absl::Time start = absl::Now();
  Process hasty("server/tryst", recv("1500ms"));
  EXPECT_EQ(hasty.Wait(), 1);
  EXPECT_LT(absl::Now() - start, absl::Seconds(8)) << "hangs";
  EXPECT_TRUE(absl::StrContains(hasty.err(), "DEADLINE_EXCEEDED") ||
              absl::StrContains(hasty.err(), "UNAVAILABLE"))
      << hasty.err();
  Process patient("server/tryst", recv("20s"));
  absl::SleepFor(absl::Milliseconds(700));
  source.Signal(SIGCONT);
  EXPECT_EQ(patient.Wait(), 0) << patient.err();
  EXPECT_TRUE(ReadFile(TempFile("thawed.npy")) == ReadFile(file));
}

// The bootstrap breaks off after a number of bytes from the producer: within HTTP/2's greeting, a
// ping's answer, or a hello's answer.
TEST(Processes, AHandshakeThatBreaksOffAnywhereIsTakenUpAgain) {
  const std::string file = WriteFloats("broken_off.npy", 1 << 16, 1);
  Process source("server/tryst", With({"serve", "w=" + file, "x=" + file, "y=" + file, "z=" + file,
                                       "v=" + file, absl::StrCat("--to=", kSink)},
                                      Self("src")));
  const std::string address = source.Address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  int cut = 0;
  const std::pair<const char*, int> edges[] = {
      {"w", 0}, {"x", 60}, {"y", 200}, {"z", 330}, {"v", 500}};
  for (const auto& [edge, bytes] : edges) {
    CutProxy proxy(port);
    proxy.CutAfterBytes(bytes);
    Process sink("server/tryst", With({"recv", edge, TempFile("whole.npy"),
                                       absl::StrCat("--from=", kSource, "@", proxy.address())},
                                      Self("dst")));
    for (int i = 0; i < 400 && proxy.connections() < 2; ++i) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    cut += proxy.connections() > 1;
    proxy.CutAfterBytes(-1);
    EXPECT_EQ(sink.Wait(), 0) << bytes << sink.err() << source.err();
    EXPECT_TRUE(ReadFile(TempFile("whole.npy")) == ReadFile(file)) << bytes;
    unlink(TempFile("whole.npy").c_str());
  }
  EXPECT_GE(cut, 3);  // It really broke off.
}

TEST(Processes, GarbageDoesNotBringADaemonDown) {
  Process daemon("server/trystd", Self("src"));
  const std::string address = daemon.Address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\n\r\n", std::string(100000, '\xff'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(100000, '\x01'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  // Then nothing: half open.
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
  Process ping("server/tryst", {"ping", absl::StrCat(kSource, "@", address), "--insecure"});
  EXPECT_EQ(ping.Wait(), 0) << ping.err() << daemon.err();
  for (int fd : open) close(fd);
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
}

TEST(Processes, WhoseLinesNobodyReadsServesOn) {
  const std::string token = TempFile("open.token");
  std::ofstream(token) << "0123456789abcdef\n";
  chmod(token.c_str(), 0644);
  const std::vector<std::string> flags = {"--open_cluster", "--nic=soft", "--job=src",
                                          "--listen=127.0.0.1:0", "--token_file=" + token};
  Process heard("server/trystd", flags);
  heard.Address();
  EXPECT_TRUE(absl::StrContains(heard.err(), "can be read by other users")) << heard.err();
  // Now the line goes into a pipe that has no other end.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  Process unheard("/bin/sh", With({"-c", "exec \"$0\" \"$@\" 2>&3", "server/trystd"}, flags),
                  ends[1]);
  const std::string address = unheard.Address();
  close(ends[1]);
  Process ping("server/tryst",
               {"ping", absl::StrCat(kSource, "@", address), "--token_file=" + token});
  EXPECT_EQ(ping.Wait(), 0) << ping.err();
  unheard.Signal(SIGTERM);
  EXPECT_EQ(unheard.Wait(), 0);
}

TEST(Processes, AClusterFileMovesAWorkerAtRunTime) {
  const std::string file = TempFile("cluster.json");
  const auto write = [&](int port) {
    std::ofstream(file + ".new") << absl::StrCat(
        R"({"job": [{"name": "dst", "tasks": {"0": "127.0.0.1:1"}},)",
        R"({"name": "src", "tasks": {"0": "127.0.0.1:)", port, R"("}}]})");
    rename((file + ".new").c_str(), file.c_str());
  };
  write(1);  // Nobody listens.
  Process sink(
      "server/tryst",
      {"recv", "w", TempFile("moved.npy"), absl::StrCat("--from=", kSource), "--insecure",
       "--job=dst", "--listen=127.0.0.1:0", "--nic=soft", absl::StrCat("--resolver=file:", file)});
  sink.Address();
  const std::string npy = WriteFloats("moves.npy", 4, 1);
  const int port = FreePort();
  Process source(
      "server/tryst",
      {"serve", absl::StrCat("w=", npy), absl::StrCat("--to=", kSink), "--insecure", "--job=src",
       "--nic=soft", absl::StrCat("--cluster_spec=dst=127.0.0.1:1;src=127.0.0.1:", port)});
  source.Address();
  write(port);
  ASSERT_EQ(sink.Wait(), 0) << sink.err();
  EXPECT_TRUE(ReadFile(TempFile("moved.npy")) == ReadFile(npy));
}

TEST(Processes, WhatMakesNoSenseIsSaidAtOnce) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--job=ps", "--open_cluster"}, "other workers cannot connect to 0.0.0.0"},
      {{"--job=ps", "--open_cluster", "--listen=127.0.0.1:0"}, "0 ways of security"},
      {{"--insecure", "--job=ps", "--listen=0.0.0.0:0", "--open_cluster", "--advertise=h:1"},
       "can be reached by other hosts"},
      {{"--insecure", "--job=ps", "--protocol=grpc+gdr", "--open_cluster"},
       "should be one of: grpc"},
      {{"--tusk=1"}, "no flag --tusk"},
      {{"--insecure", "--job=ps", "--open_cluster", "--memory_bytes=1MiB"}, "add up to more"},
      {{"--insecure", "--job=ps", "--cluster_spec=worker=127.0.0.1:1"},
       "is not named in the cluster's description"},
  };
  for (const auto& [args, why] : cases) {
    Process daemon("server/trystd", args);
    EXPECT_EQ(daemon.Wait(), 1);
    EXPECT_TRUE(absl::StrContains(daemon.err(), why)) << daemon.err();
  }
}

TEST(Processes, SettingsThatAreFilesWithoutAnEndAreRefused) {
  const std::string fifo = TempFile("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int writer = open(fifo.c_str(), O_RDWR | O_CLOEXEC);  // So that its readers meet no end.
  ASSERT_GE(writer, 0);
  const std::vector<std::string> some = {"--job=ps", "--open_cluster", "--listen=127.0.0.1:0"};
  for (const std::string& file : {std::string("/dev/zero"), fifo}) {
    for (const char* setting : {"--config", "--token_file", "--certificate_file"}) {
      std::vector<std::string> flags = With({absl::StrCat(setting, "=", file)}, some);
      if (setting == std::string("--certificate_file")) {
        flags.push_back("--key_file=" + file);
        flags.push_back("--ca_file=" + file);
      }
      Process daemon("server/trystd", flags);
      EXPECT_EQ(daemon.Wait(), 1) << setting << " " << file;
      EXPECT_TRUE(absl::StrContains(daemon.err(), file)) << daemon.err();
      EXPECT_TRUE(absl::StrContains(daemon.err(), "end")) << daemon.err();
    }
    Process page("server/tryst", {"page", file, "--insecure"});
    EXPECT_EQ(page.Wait(), 2) << file;
  }
  close(writer);
}

TEST(Processes, ADaemonIsStoppedByNoSignalButTwo) {
  const std::string file = TempFile("again.json");
  const auto write = [&](const std::string& more) {
    std::ofstream(file) << R"({"job": [{"name": "src", "tasks": {"0": "127.0.0.1:0")" << more
                        << "}}]}";
  };
  write("");
  Process daemon("server/trystd", {"--insecure", "--job=src", "--listen=127.0.0.1:0", "--nic=soft",
                                   "--resolver=file:" + file});
  daemon.Address();
  for (int signal : {SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE}) daemon.Signal(signal);
  write(R"(, "1": "127.0.0.1:7")");
  daemon.Signal(SIGHUP);
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (!absl::StrContains(daemon.err(), "task:1 at 127.0.0.1:7") && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_TRUE(absl::StrContains(daemon.err(), "task:1 at 127.0.0.1:7")) << daemon.err();
  EXPECT_TRUE(absl::StrContains(daemon.err(), "SIGHUP")) << daemon.err();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
}

TEST(Processes, ADaemonsLinesAreJsonWhereThatIsAskedFor) {
  for (const bool json : {false, true}) {
    Process daemon("server/trystd",
                   With(Self("src"), {json ? "--log_format=json" : "--log_format=text"}));
    daemon.Address();
    daemon.Signal(SIGHUP);
    std::string line;  // What it says of the signal, when that is whole.
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (line.empty() && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(20));
      std::vector<std::string> lines = absl::StrSplit(daemon.err(), '\n');
      lines.pop_back();
      for (const std::string& one : lines) {
        if (absl::StrContains(one, "SIGHUP")) line = one;
      }
    }
    EXPECT_NE(line, "") << daemon.err();
    EXPECT_EQ(absl::StartsWith(line, "{\"unix_ms\":"), json) << line;
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
  }
}

TEST(Processes, ASendEndsWhenItsTensorWasAccepted) {
  const std::string npy = WriteFloats("accepted.npy", 1 << 20, 1);
  for (const char* flag : {"--nic=auto", "--nic=soft", "--protocol=grpc"}) {
    for (int round = 0; round < 5; ++round) {
      const int port = FreePort();
      Process send("server/tryst", With({"send", "w", npy, absl::StrCat("--to=", kSink), flag},
                                        {"--insecure", "--open_cluster", "--job=src",
                                         absl::StrCat("--listen=127.0.0.1:", port)}));
      const std::string at = absl::StrCat(kSource, "@", send.Address());
      Process recv("server/tryst",
                   With({"recv", "w", TempFile("accepted"), "--from=" + at, flag},
                        {"--insecure", "--open_cluster", "--job=dst", "--listen=127.0.0.1:0"}));
      EXPECT_EQ(recv.Wait(), 0) << flag << "\n" << recv.err() << send.err();
      EXPECT_EQ(send.Wait(), 0) << flag << "\n" << send.err();
      for (const std::string& err : {recv.err(), send.err()}) {
        EXPECT_FALSE(absl::StartsWith(err, "W") || absl::StrContains(err, "\nW")) << flag << err;
      }
    }
  }
}

TEST(Processes, WhatIsNoRecordingIsNotPlayedBack) {
  const std::string file = TempFile("bytes");
  for (const std::string& text :
       {std::string("\x01\xff{\n\x00\n", 7), std::string("{}\n"), std::string("[1]\n"),
        std::string("{\"names\":1}\n"), std::string()}) {
    std::ofstream(file) << text;
    Process page("server/tryst", {"page", file, "--insecure"});
    EXPECT_EQ(page.Wait(), 2) << text;
    EXPECT_TRUE(absl::StrContains(page.err(), "neither a worker nor a recording")) << page.err();
  }
}

TEST(Processes, ARecordThatCannotBeWrittenEndsThePage) {
  Process daemon("server/trystd",
                 {"--job=ps", "--open_cluster", "--listen=127.0.0.1:0", "--insecure"});
  const std::string worker = absl::StrCat("/job:ps/replica:0/task:0@", daemon.Address());
  for (const std::string file : {"/no/such/folder/x", "/dev/full"}) {
    Process page("server/tryst", {"page", worker, "--insecure", "--every=10ms", "--out=" + file});
    EXPECT_EQ(page.Wait(), 1) << file;
    const std::string said = page.err();
    EXPECT_TRUE(absl::StrContains(said, "cannot write " + file)) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_EQ(page.out().empty(), file != "/dev/full") << "it is known before the page is served";
  }
}

TEST(Processes, APrivateKeyThatOthersReadIsWarnedOf) {
  const std::string key = TempFile("others.key");
  std::ofstream(key) << "no key\n";
  chmod(key.c_str(), 0644);
  Process daemon("server/trystd",
                 {"--job=ps", "--open_cluster", "--listen=127.0.0.1:0", "--key_file=" + key,
                  "--certificate_file=" + key, "--ca_file=" + key});
  EXPECT_EQ(daemon.Wait(), 1);
  EXPECT_TRUE(absl::StrContains(daemon.err(), "others.key can be read by other users"))
      << daemon.err();
}

}  // namespace
}  // namespace tryst
