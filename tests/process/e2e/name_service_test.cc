// Peers are found by gRPC's own DNS resolver, as in Kubernetes. The test is the name server. A pod
// that comes back has another address.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "server/server.h"

namespace tryst {
namespace {

// Answers queries for A records from a table, with a time to live of 0; answers all others with
// nothing.
class NameServer {
 public:
  NameServer() : fd_(socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~NameServer() {
    shutdown(fd_, SHUT_RDWR);
    // Sends an empty datagram to itself, in case the shutdown does not wake the thread.
    sockaddr_in self{};
    self.sin_family = AF_INET;
    self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    self.sin_port = htons(static_cast<uint16_t>(port_));
    const int other = socket(AF_INET, SOCK_DGRAM, 0);
    {
      MutexLock lock(&mu_);
      stop_ = true;
    }
    (void)sendto(other, "", 0, 0, reinterpret_cast<sockaddr*>(&self), sizeof(self));
    close(other);
    thread_.join();
    close(fd_);
  }
  int port() const { return port_; }
  void Set(const std::string& name, const std::string& ip) {
    MutexLock lock(&mu_);
    table_[name] = ip;
  }
  int questions() {
    MutexLock lock(&mu_);
    return questions_;
  }

 private:
  void Serve() {
    for (;;) {
      uint8_t packet[512];
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      const ssize_t got =
          recvfrom(fd_, packet, sizeof(packet), 0, reinterpret_cast<sockaddr*>(&from), &length);
      MutexLock lock(&mu_);
      if (stop_) return;
      if (got < 17) continue;
      const std::string answer =
          Answer(std::string(reinterpret_cast<char*>(packet), static_cast<size_t>(got)));
      (void)sendto(fd_, answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from),
                   length);
    }
  }
  std::string Answer(const std::string& question) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++questions_;
    std::string name;
    size_t at = 12;
    while (at < question.size() && question[at] != 0) {
      const size_t length = static_cast<size_t>(question[at]);
      absl::StrAppend(&name, name.empty() ? "" : ".", question.substr(at + 1, length));
      at += length + 1;
    }
    const size_t end = at + 5;  // The root's 0, type and class.
    if (end > question.size()) return "";
    const bool wants_address = question[at + 1] == 0 && question[at + 2] == 1;
    const auto found = table_.find(absl::AsciiStrToLower(name));
    const bool knows = wants_address && found != table_.end();
    std::string out = question.substr(0, 2);
    out += std::string("\x81\x80\0\1\0", 5);  // The header of an answer to one question.
    out.push_back(knows ? 1 : 0);
    out += std::string(4, '\0') + question.substr(12, end - 12);
    if (knows) {
      in_addr address{};
      inet_pton(AF_INET, found->second.c_str(), &address);
      out += std::string("\xc0\x0c\0\1\0\1\0\0\0\0\0\4", 12);
      out.append(reinterpret_cast<char*>(&address), 4);
    }
    return out;
  }

  const int fd_;
  int port_ = 0;
  Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int questions_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::string> table_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

constexpr char kName[] = "ps-0.tryst.default.svc.cluster.local";

std::unique_ptr<Server> Start(const std::string& job, const std::string& listen,
                              const std::string& ps_address) {
  ServerConfig config;
  config.job = job;
  config.insecure = true;
  config.nic = "soft";
  config.listen = listen;
  config.advertise = listen;
  config.patience = absl::Seconds(20);
  ClusterSpec spec;
  spec.jobs["ps"][0] = ps_address;
  spec.jobs["worker"][0] = job == "worker" ? listen : "127.0.0.1:1";
  auto server = ServerBuilder().SetEnvironment({}).SetCluster(spec).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE((*server)->Start().ok());
  return *std::move(server);
}

absl::Status Exchange(Server* ps, Server* worker, int64_t step) {
  const TensorKey key =
      *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;k;0:0", ps->worker(),
                                        ps->incarnation(), worker->worker()));
  absl::Status sent = (*ps->steps()->StartStep(step))
                          ->Send(key, {}, *Tensor::Allocate(DType::kFloat, {10'000}), false);
  if (!sent.ok()) return sent;
  return (*worker->steps()->StartStep(step))->Recv(key, {}, absl::Seconds(20)).status();
}

TEST(NameService, APodIsFoundByItsNameAndFoundAgainElsewhere) {
  NameServer names;
  names.Set(kName, "127.0.0.1");
  auto ps = Start("ps", "127.0.0.1:0", "127.0.0.1:0");
  const int port = ps->port();
  // ClusterFromKubernetes() makes the same text, except that this names the server to ask.
  const std::string target = absl::StrCat("dns://127.0.0.1:", names.port(), "/", kName, ":", port);
  auto worker = Start("worker", "127.0.0.1:0", target);
  absl::Status met = Exchange(ps.get(), worker.get(), 1);
  EXPECT_TRUE(met.ok()) << met << worker->Explain("");
  const int asked = names.questions();
  EXPECT_GT(asked, 0);

  // The pod is scheduled on another node. It does not announce itself to this worker.
  ASSERT_TRUE(ps->Stop(absl::Seconds(5)).ok());
  names.Set(kName, "127.0.0.2");
  ps = Start("ps", absl::StrCat("127.0.0.2:", port), absl::StrCat("127.0.0.2:", port));
  met = Exchange(ps.get(), worker.get(), 2);
  EXPECT_TRUE(met.ok()) << met << worker->Explain("");
  EXPECT_GT(names.questions(), asked);
}

}  // namespace
}  // namespace tryst
