#include "tests/attack/attackers.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/transport.pb.h"
#include "tests/attack/http2_flood.h"
#include "tests/attack/insider.h"

namespace tryst {
namespace {

constexpr int kConnections = 4;
constexpr uid_t kNobody = 65534;

class Floods final : public Attack {
 public:
  Floods(Flood flood, const std::vector<int>& ports, int connections, const std::string& from) {
    for (int port : ports) {
      floods_.push_back(std::make_unique<Http2Flood>(flood, port, connections, from));
    }
  }

 private:
  std::vector<std::unique_ptr<Http2Flood>> floods_;
};

// Repeats one action on a thread of its own.
class Again final : public Attack {
 public:
  explicit Again(std::function<void(uint64_t round)> act)
      : thread_([this, act = std::move(act)] {
          for (uint64_t round = 1; !stop_.load(); ++round) act(round);
        }) {}
  ~Again() override {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Only this thread becomes another user, if the process may do that.
void BecomeNobody() {
  if (geteuid() == 0) syscall(SYS_setresuid, kNobody, kNobody, kNobody);
}

void Knock(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  memcpy(to.sun_path + 1, name.data(), std::min(name.size(), sizeof(to.sun_path) - 1));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), length) == 0) {
    const char nonsense[64] = {};
    send(fd, nonsense, sizeof(nonsense), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  close(fd);
}

std::string WorkerName(uint64_t task) {
  return absl::StrCat("/job:intruder/replica:0/task:", task % 1000);
}

std::unique_ptr<Insider> MakeInsider(const HonestJob& job, const std::string& cluster,
                                     const std::string& token) {
  return std::make_unique<Insider>(
      Insider::Target{HonestJob::ps_name(), absl::StrCat("127.0.0.1:", job.port()), cluster, token},
      WorkerName(0), 7);
}

using Act = std::function<void(Insider* insider, uint64_t round)>;

Attacker ByInsider(const std::string& who, const std::string& cluster, const std::string& token,
                   const std::string& what, Act act) {
  return {who, what, 1, [cluster, token, act = std::move(act)](const HonestJob& job) {
            std::shared_ptr<Insider> insider = MakeInsider(job, cluster, token);
            return std::make_unique<Again>(
                [insider, act](uint64_t round) { act(insider.get(), round); });
          }};
}

void AbortWithALongText(Insider* insider, uint64_t round) {
  rpc::AbortStepRequest request;
  request.set_step_id(static_cast<int64_t>(1'000'000 + round));
  request.set_code(10);
  request.set_message(std::string(3 << 20, 'm'));
  insider->Call("AbortStep", request.SerializeAsString());
}

void TellWhatIsOver(Insider* insider, uint64_t round) {
  rpc::FetchRequest request;
  request.set_serial(uint64_t{1} << 40);
  request.set_oldest_serial(1);
  request.set_ends(true);
  request.set_channel(round % 300);
  for (uint64_t i = 0; i < 65'536; ++i) request.add_over(round * 200'000 + 2 * i);
  insider->Fetch(request.SerializeAsString(), 0);
}

void AskForUnstartedSteps(Insider* insider, uint64_t round) {
  rpc::FetchRequest request;
  request.set_waits(true);
  request.set_sealed(true);
  request.set_channel(1);
  request.set_oldest_serial(1);
  for (uint64_t i = 0; i < 256; ++i) {
    rpc::FetchAsk* ask = request.add_asks();
    ask->set_serial(round * 256 + i);
    ask->set_step_id(static_cast<int64_t>(2'000'000 + round * 256 + i));
    ask->set_key(absl::StrCat(HonestJob::ps_name(), "/device:CPU:0;0000000000000001;",
                              insider->name(), "/device:CPU:0;k", i, ";0:0"));
  }
  insider->Fetch(request.SerializeAsString(), 200);
}

void AnnounceWhoIsNot(Insider* insider, uint64_t round) {
  const std::string name = absl::StrCat("/job:", std::string(round % 2 == 0 ? 5000 : 200, 'x'),
                                        "/replica:0/task:", round);
  Insider other(insider->target(), name, 7);
  rpc::HeartbeatRequest request;
  request.mutable_self()->set_worker(name);
  request.mutable_self()->set_incarnation(7);
  request.mutable_self()->set_address("127.0.0.1:1");
  other.Call("Heartbeat", request.SerializeAsString());
}

void BeginSteps(Insider* insider, uint64_t round) {
  rpc::BeginStepRequest request;
  request.set_step_id(static_cast<int64_t>(3'000'000 + round));
  insider->Call("BeginStep", request.SerializeAsString());
  rpc::CleanupStepRequest cleanup;
  cleanup.set_step_id(request.step_id());
  insider->Call("CleanupStep", cleanup.SerializeAsString());
}

void SayNonsense(Insider* insider, uint64_t round) {
  static constexpr const char* kMethods[] = {"Hello",     "Heartbeat", "BeginStep", "SendSamples",
                                             "AbortStep", "Explain",   "TraceKey",  "NoSuchMethod"};
  std::string bytes(round * 7919 % 3000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>((i + round) * 31 % 251);
  insider->Call(kMethods[round % 8], bytes);
}

}  // namespace

std::vector<Attacker> AllAttackers(const std::string& token) {
  std::vector<Attacker> all;
  for (Flood flood : AllFloods()) {
    all.push_back({"outsider", absl::StrCat(FloodName(flood), " to gRPC"), kConnections,
                   [flood](const HonestJob& job) {
                     return std::make_unique<Floods>(flood, std::vector<int>{job.port()},
                                                     kConnections, "127.0.0.2");
                   }});
  }
  for (Flood flood : {Flood::kNonsense, Flood::kDrip, Flood::kReconnect}) {
    all.push_back({"outsider", absl::StrCat(FloodName(flood), " to the NIC and the status page"),
                   2 * kConnections, [flood](const HonestJob& job) {
                     return std::make_unique<Floods>(flood, job.OtherPorts(), kConnections,
                                                     "127.0.0.2");
                   }});
  }
  // Those that are displaced connect again at once, so that all these threads stay busy.
  all.push_back({"outsider", "a crowd that says nothing", kConnections, [](const HonestJob& job) {
                   return std::make_unique<Floods>(Flood::kDrip, std::vector<int>{job.port()}, 150,
                                                   "127.0.0.3");
                 }});
  all.push_back({"local user", "knocks for shared memory", 1, [](const HonestJob& job) {
                   const std::vector<std::string> doors = job.AbstractSockets();
                   return std::make_unique<Again>([doors](uint64_t round) {
                     if (round == 1) BecomeNobody();
                     for (const std::string& door : doors) Knock(door);
                     if (doors.empty()) absl::SleepFor(absl::Milliseconds(100));
                   });
                 }});
  const auto member = [&](const std::string& what, Act act) {
    all.push_back(ByInsider("member", "lab", token, what, std::move(act)));
  };
  member("aborts steps with long texts", AbortWithALongText);
  member("tells without end what is over", TellWhatIsOver);
  member("asks for steps that nobody starts", AskForUnstartedSteps);
  member("announces workers that are not", AnnounceWhoIsNot);
  member("begins and ends steps", BeginSteps);
  member("says nonsense", SayNonsense);
  const auto stranger = [&](const std::string& what, Act act) {
    all.push_back(
        ByInsider("other job", "other", "the token of the other job", what, std::move(act)));
  };
  stranger("calls as if it were of this one", SayNonsense);
  stranger("aborts steps", AbortWithALongText);
  return all;
}

}  // namespace tryst
