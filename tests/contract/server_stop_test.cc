// What a server that stops leaves with its peers.
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "channel/trace/path_view.h"
#include "gtest/gtest.h"
#include "server/data_plane/open_nics.h"
#include "server/server.h"
#include "server/status/insight.h"
#include "tests/contract/breakable_nic.h"
#include "tests/process/pair/moment.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

// Says on each connection of a local socket what nobody may say, so that the other end breaks it.
void SpoilLocalSockets() {
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0;
    int type = 0;
    socklen_t size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) continue;
    (void)send(fd, "?", 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // Fails at one that listens.
  }
}

// A consumer whose link to its producer breaks, and that gets no other, stops.
class ServerStopTest : public testing::TestWithParam<const char*> {
 protected:
  bool by_shm() const { return std::string(GetParam()) == "shm"; }

  std::unique_ptr<Server> Start(const char* job, const std::string& join) {
    ServerConfig config;
    config.cluster = "lab";
    config.job = job;
    config.protocol = "grpc+breakable";
    config.insecure = true;
    config.listen = "127.0.0.1:0";
    config.open_cluster = true;
    config.shm = by_shm() ? "on" : "off";
    config.join = join;
    config.pollers = "1";
    // Over shared memory no second link is made while tensors of the first are held.
    config.max_peers = 1;
    config.patience = kLong;
    const auto open = [this](const ServerConfig&, const NicPlace&) {
      auto soft = OpenSoftNic(SoftNicOptions());
      EXPECT_TRUE(soft.ok()) << soft.status();
      nic_ = std::make_shared<BreakableNic>(*std::move(soft));  // The consumer's is the last.
      return std::vector<NicPath>{{"rdma/soft", nic_}};
    };
    auto server = ServerBuilder()
                      .SetEnvironment({})
                      .AddProtocol("grpc+breakable", OverNics(open))
                      .Build(config);
    EXPECT_TRUE(server.ok() && (*server)->Start().ok()) << server.status();
    return *std::move(server);
  }

  TensorKey Key(const std::string& edge) const {
    return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0",
                                             producer_->worker(), producer_->incarnation(),
                                             consumer_->worker(), edge));
  }

  // The consumer asks for `edge`; `done` runs on its poller.
  void Receive(const std::string& edge, const RecvArgs& args, std::function<void(Tensor)> done) {
    (*consumer_->steps()->StartStep(1))
        ->RecvAsync(Key(edge), args, [done = std::move(done)](Received&& received) {
          done(std::move(received.tensor));
        });
  }
  void Bring(const std::string& edge, std::function<void(Tensor)> done) {
    constexpr int64_t kBytes = 1 << 20;
    auto tensor = by_shm()
                      ? producer_->allocator()->AllocateTensor(DType::kUint8, TensorShape({kBytes}))
                      : Tensor::Allocate(DType::kUint8, TensorShape({kBytes}));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    ASSERT_TRUE((*producer_->steps()->StartStep(1))->Send(Key(edge), {}, *tensor, false).ok());
    RecvArgs args;
    args.by_reference = true;
    Moment came;
    Receive(edge, args, [&](Tensor got) {
      EXPECT_TRUE(got.valid());
      done(std::move(got));
      came.Come();
    });
    ASSERT_TRUE(came.Wait()) << consumer_->Explain("");
  }

  // How many waiting operations of the producer are for `edge`.
  size_t Waiting(const std::string& edge) const {
    const std::string all = producer_->insight()->WaitingText(-1);
    const std::vector<std::string> pieces = absl::StrSplit(all, std::string(Key(edge).text()));
    return pieces.size() - 1;
  }
  bool LinkFails() const {
    std::string trouble;
    for (const PathView& view : consumer_->insight()->Paths("", &trouble)) {
      if (view.in_use && view.role == TraceRole::kFetch && view.path != "grpc" &&
          view.health == PathHealth::kFailing) {
        return true;
      }
    }
    return false;
  }
  static bool Wait(const std::function<bool()>& until) {
    const absl::Time end = absl::Now() + kLong;
    while (!until() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    return until();
  }

  std::shared_ptr<BreakableNic> nic_;
  std::unique_ptr<Server> producer_;
  std::unique_ptr<Server> consumer_;
};
INSTANTIATE_TEST_SUITE_P(, ServerStopTest, testing::Values("shm", "rdma"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ServerStopTest, LeavesNothingThatItsPeerKeepsForIt) {
  producer_ = Start("ps", "");
  consumer_ = Start("worker", absl::StrCat(producer_->worker(), "@", producer_->address()));
  Tensor held;
  Bring("held", [&](Tensor got) { held = std::move(got); });
  Receive("waits", {}, [](Tensor) {});
  ASSERT_TRUE(Wait([&] { return Waiting("waits") > 0; })) << consumer_->Explain("");
  Bring("last", [&](Tensor) {
    if (by_shm()) {
      SpoilLocalSockets();
    } else {
      nic_->SetLost(true);
    }
  });
  ASSERT_TRUE(Wait([&] { return LinkFails(); })) << consumer_->insight()->PathsText("");
  ASSERT_GT(Waiting("waits"), 0u) << producer_->insight()->PathsText("");
  const absl::Status stopped = consumer_->Stop(absl::Seconds(5));
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_EQ(Waiting("waits"), 0u) << producer_->insight()->WaitingText(-1);
}

}  // namespace
}  // namespace tryst
