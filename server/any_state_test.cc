// Every public call of Server in every state: before Start(), after one that failed, while it
// serves, in callbacks on each of its threads, while it stops, and afterwards.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "rendezvous/rendezvous.h"
#include "server/members/membership.h"
#include "server/server.h"
#include "server/status/insight.h"

namespace tryst {
namespace {

constexpr absl::Duration kHung = absl::Seconds(30);
constexpr char kNobody[] = "/job:nobody/replica:0/task:7";

std::unique_ptr<Server> Build(const std::string& job, const std::string& way,
                              const std::string& join = "", const std::string& listen = "") {
  ServerConfig config;
  config.cluster = "lab";
  config.job = job;
  config.protocol = way == "grpc" ? "grpc" : "grpc+verbs";
  config.nic = "soft";
  config.shm = way == "shm" ? "on" : "off";
  config.insecure = true;
  config.listen = listen.empty() ? "127.0.0.1:0" : listen;
  config.open_cluster = true;
  config.join = join;
  config.stop_deadline = absl::Seconds(3);
  auto server = ServerBuilder().SetEnvironment({}).Build(config);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::string Seed(const Server& server) {
  return absl::StrCat(server.worker(), "@", server.address());
}

TensorKey Key(const Server& producer, const std::string& consumer, const std::string& edge) {
  return *TensorKey::Parse(absl::StrFormat("%s/device:CPU:0;%016x;%s/device:CPU:0;%s;0:0",
                                           producer.worker(), producer.incarnation(), consumer,
                                           edge));
}

// ---- The table ----

struct Call {
  const char* name;
  std::function<void(Server*)> make;
};

DoneFn Ignore() {
  return [](Received&&) {};
}

// Uses a step of `server`, if the server gives one out. Each receive must end at once or wait;
// those that wait end with the step, below.
void UseStep(Server* server) {
  StepRegistry* const steps = server->steps();
  if (steps == nullptr) return;
  constexpr int64_t kStep = 1000;
  auto step = steps->StartStep(kStep);
  if (step.ok()) {
    const TensorKey own = Key(*server, server->worker(), "own");
    (*step)->RecvAsync(own, {}, Ignore());
    (void)(*step)->Send(own, {}, Tensor(), true);
    SendItem item{own, Tensor(), true};
    (void)(*step)->SendMany(absl::MakeSpan(&item, 1), {});
    RecvArgs args;
    args.executor = server->executor();
    (*step)->RecvAsync(own, args, Ignore());
    (*step)->WhenRoom(1, [](absl::Status) {});
    (*step)->StartAbort(absl::AbortedError("enough"));
    EXPECT_FALSE((*step)->Send(own, {}, Tensor(), true).ok());
  }
  (void)steps->FindStep(kStep);
  (void)steps->counters();
  EXPECT_FALSE(steps->DumpWaitingJson().empty());
  (void)steps->DumpWaitingText();
  steps->AbortStep(kStep + 1, absl::DataLossError("bad rows"));
  steps->CleanupStep(kStep);
}

const std::vector<Call>& Calls() {
  static const auto* const calls = new std::vector<Call>{
      {"worker", [](Server* s) { EXPECT_FALSE(s->worker().empty()); }},
      {"incarnation", [](Server* s) { EXPECT_NE(s->incarnation(), 0u); }},
      {"address", [](Server* s) { (void)s->address().size(); }},
      {"port", [](Server* s) { (void)s->port(); }},
      {"steps", UseStep},
      {"executor",
       [](Server* s) {
         ASSERT_NE(s->executor(), nullptr);
         Executor::Work work = [] {};
         (void)s->executor()->TryRun(&work);
       }},
      {"members", [](Server* s) { (void)s->members()->Members(); }},
      {"calls",
       [](Server* s) {
         EXPECT_FALSE(s->calls()->Ping(kNobody, absl::Milliseconds(20)).ok());
         EXPECT_FALSE(s->calls()->BeginStep(kNobody, 1, absl::Milliseconds(20)).ok());
       }},
      {"config", [](Server* s) { EXPECT_EQ(s->config().cluster, "lab"); }},
      {"allocator",
       [](Server* s) {
         if (s->allocator() != nullptr) (void)s->allocator()->Allocate(4096);
       }},
      {"gpu", [](Server* s) { EXPECT_EQ(s->gpu(0), nullptr); }},
      {"Explain",
       [](Server* s) { EXPECT_NE(s->Explain("").find(s->worker()), std::string::npos); }},
      {"Explain of a peer", [](Server* s) { (void)s->Explain(kNobody); }},
      {"Stats", [](Server* s) { (void)s->Stats().size(); }},
      {"insight",
       [](Server* s) {
         if (s->insight() == nullptr) return;
         (void)s->insight()->Metrics();
         (void)s->insight()->PathsJson("");
         (void)s->insight()->WaitingText(-1);
         (void)s->insight()->WaitingJson(3);
         (void)s->insight()->Stats();
       }},
      {"status_address", [](Server* s) { (void)s->status_address(); }},
  };
  return *calls;
}

// Makes a call that hangs fail with its name.
void InTime(const std::string& what, const std::function<void()>& fn) {
  absl::Notification done;
  std::thread watch([&] {
    if (done.WaitForNotificationWithTimeout(kHung)) return;
    TRYST_LOG(Fatal) << what << " has not returned within " << absl::FormatDuration(kHung);
  });
  fn();
  done.Notify();
  watch.join();
}

void CallAll(Server* server, const std::string& when) {
  for (const Call& call : Calls()) {
    const absl::Time begun = absl::Now();
    InTime(absl::StrCat(call.name, " ", when), [&] { call.make(server); });
    EXPECT_LT(absl::Now() - begun, absl::Seconds(10)) << call.name << " " << when;
  }
}

// ---- Callbacks ----

enum class Where { kExecutor, kChannel, kAlarm, kControl };
const char* NameOf(Where where) {
  switch (where) {
    case Where::kExecutor:
      return "on the executor";
    case Where::kChannel:
      return "in place, of a remote tensor";
    case Where::kAlarm:
      return "in place, of a deadline";
    case Where::kControl:
      return "in place, of a step that a peer aborts";
  }
  return "";
}

// Runs `body` in a callback of `self`, and returns after the callback has returned.
void InCallback(Server* self, Server* peer, Where where, int64_t step, std::function<void()> body) {
  absl::Notification left;
  auto rendezvous = *self->steps()->StartStep(step);
  const auto done = [&](Received&&) {
    InTime(absl::StrCat("the callback ", NameOf(where)), body);
    left.Notify();
  };
  const TensorKey own = Key(*self, self->worker(), "k");
  const TensorKey theirs = Key(*peer, self->worker(), "k");
  RecvArgs args;
  if (where == Where::kExecutor) args.executor = self->executor();
  if (where == Where::kAlarm)
    args.deadline = Deadline::After(SteadyClock(), absl::Milliseconds(20));
  rendezvous->RecvAsync(where == Where::kChannel ? theirs : own, args, done);
  if (where == Where::kExecutor) {
    EXPECT_TRUE(rendezvous->Send(own, {}, Tensor(), true).ok());
  }
  if (where == Where::kChannel) {
    // By now the peer has been asked for the tensor, so it is not delivered at once.
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_TRUE((*peer->steps()->StartStep(step))->Send(theirs, {}, Tensor(), true).ok());
  }
  if (where == Where::kControl) {
    EXPECT_TRUE(
        peer->calls()
            ->AbortStep(self->worker(), step, absl::DataLossError("bad rows"), absl::Seconds(10))
            .ok());
  }
  rendezvous.reset();
  ASSERT_TRUE(left.WaitForNotificationWithTimeout(kHung)) << NameOf(where);
}

class AnyState : public testing::TestWithParam<const char*> {
 protected:
  void StartPair() {
    peer_ = Build("peer", GetParam());
    ASSERT_TRUE(peer_->Start().ok());
    self_ = Build("self", GetParam(), Seed(*peer_));
    ASSERT_TRUE(self_->Start().ok());
    ASSERT_TRUE(peer_->calls()->Ping(self_->worker(), absl::Seconds(20)).ok());
    // A first transfer opens the path.
    InCallback(self_.get(), peer_.get(), Where::kChannel, 1, [] {});
  }

  std::unique_ptr<Server> peer_;
  std::unique_ptr<Server> self_;
};
INSTANTIATE_TEST_SUITE_P(, AnyState, testing::Values("grpc", "soft", "shm"),
                         [](const auto& info) { return std::string(info.param); });

constexpr Where kEverywhere[] = {Where::kExecutor, Where::kChannel, Where::kAlarm, Where::kControl};

TEST_P(AnyState, BeforeStart) {
  auto server = Build("self", GetParam());
  CallAll(server.get(), "before Start()");
  EXPECT_EQ(server->steps(), nullptr);
  EXPECT_EQ(server->address(), "");
  EXPECT_TRUE(server->Stats().empty());
  EXPECT_NE(server->Explain("").find("has not started"), std::string::npos);
  EXPECT_TRUE(server->Stop(absl::Seconds(1)).ok());
  server->Join();
  EXPECT_TRUE(absl::IsFailedPrecondition(server->Start())) << "after Stop()";
  CallAll(server.get(), "stopped before it has started");
}

TEST_P(AnyState, AfterAStartThatFailed) {
  auto first = Build("first", GetParam());
  ASSERT_TRUE(first->Start().ok());
  auto server = Build("self", GetParam(), "", first->address());
  EXPECT_TRUE(absl::IsUnavailable(server->Start())) << "the address is taken";
  CallAll(server.get(), "after a Start() that has failed");
  const absl::Status again = server->Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(again)) << again;
  EXPECT_NE(again.message().find("cannot listen"), std::string::npos) << again;
  EXPECT_TRUE(server->Stop(absl::Seconds(1)).ok());
  server->Join();
  CallAll(server.get(), "stopped after a Start() that has failed");
}

TEST_P(AnyState, WhileItServesAndAfterStop) {
  StartPair();
  CallAll(self_.get(), "while it serves");
  EXPECT_TRUE(absl::IsFailedPrecondition(self_->Start()));
  // Calls that run while the server stops must return, too.
  std::atomic<bool> stopped{false};
  std::thread asks([&] {
    while (!stopped) CallAll(self_.get(), "while it stops");
  });
  auto kept = *self_->steps()->StartStep(2);
  EXPECT_TRUE(self_->Stop(absl::Seconds(5)).ok());
  stopped = true;
  asks.join();
  CallAll(self_.get(), "after Stop()");
  EXPECT_TRUE(self_->Stop(absl::Seconds(5)).ok()) << "again";
  self_->Join();
  EXPECT_TRUE(absl::IsFailedPrecondition(self_->Start()));
  EXPECT_NE(self_->Stats().count("grpc_requests"), 0u) << "its last counts stay";

  // No step begins any more, and the old ones have ended.
  const auto late = self_->steps()->StartStep(3);
  EXPECT_TRUE(absl::IsAborted(late.status())) << late.status();
  const TensorKey own = Key(*self_, self_->worker(), "k");
  const TensorKey theirs = Key(*peer_, self_->worker(), "k");
  for (const TensorKey& key : {own, theirs}) {
    for (Executor* executor : {static_cast<Executor*>(nullptr), self_->executor()}) {
      absl::Notification ended;
      RecvArgs args;
      args.executor = executor;
      kept->RecvAsync(key, args, [&](Received&& received) {
        EXPECT_TRUE(absl::IsAborted(received.status)) << received.status;
        ended.Notify();
      });
      ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kHung));
    }
    EXPECT_TRUE(absl::IsAborted(kept->Recv(key, {}, absl::Seconds(5)).status()));
  }
  EXPECT_TRUE(absl::IsAborted(kept->Send(own, {}, Tensor(), true)));
  kept->StartAbort(absl::DataLossError("late"));
  kept->WhenRoom(1, [](absl::Status) {});
}

TEST_P(AnyState, InCallbacks) {
  StartPair();
  int64_t step = 10;
  for (const Where where : kEverywhere) {
    InCallback(self_.get(), peer_.get(), where, ++step, [&] {
      CallAll(self_.get(), absl::StrCat("in a callback ", NameOf(where)));
      EXPECT_EQ(self_->Explain("").find("TROUBLE"), std::string::npos) << self_->Explain("");
      EXPECT_TRUE(absl::IsFailedPrecondition(self_->Start()));
      const absl::Status stopped = self_->Stop(absl::Seconds(1));
      EXPECT_TRUE(absl::IsFailedPrecondition(stopped)) << NameOf(where) << ": " << stopped;
      EXPECT_NE(stopped.message().find("another thread"), std::string::npos) << stopped;
      self_->Join();  // In a callback, Join() would wait for itself.
    });
  }
  // The refused calls have stopped nothing. Another server may be stopped in a callback.
  InCallback(self_.get(), peer_.get(), Where::kChannel, ++step, [] {});
  auto third = Build("third", GetParam());
  ASSERT_TRUE(third->Start().ok());
  InCallback(self_.get(), peer_.get(), Where::kExecutor, ++step, [&] {
    EXPECT_TRUE(third->Stop(absl::Seconds(5)).ok());
    third.reset();
  });
  EXPECT_TRUE(self_->Stop(absl::Seconds(5)).ok());
}

// The callbacks run because the server stops, and the user makes every call in them.
TEST_P(AnyState, InCallbacksOfTheEnd) {
  for (const bool in_place : {true, false}) {
    StartPair();
    auto step = *self_->steps()->StartStep(7);
    RecvArgs args;
    if (!in_place) args.executor = self_->executor();
    absl::Notification ran;
    step->RecvAsync(Key(*peer_, self_->worker(), "never"), args, [&](Received&& received) {
      EXPECT_TRUE(absl::IsAborted(received.status)) << received.status;
      InTime("a callback of the end", [&] {
        CallAll(self_.get(), "in a callback of the end");
        EXPECT_TRUE(absl::IsFailedPrecondition(self_->Stop(absl::Seconds(1))));
      });
      ran.Notify();
    });
    InTime("Stop()", [&] { EXPECT_TRUE(self_->Stop(absl::Seconds(10)).ok()); });
    EXPECT_TRUE(ran.HasBeenNotified()) << "every callback has run when it returns";
  }
}

TEST_P(AnyState, IsDestroyedInACallback) {
  for (const Where where : kEverywhere) {
    StartPair();
    const std::string address = self_->address();
    Server* const self = self_.get();
    InCallback(self, peer_.get(), where, 20, [&] { self_.reset(); });
    EXPECT_EQ(self_, nullptr);
    // The server ends all the same, so its address becomes free.
    const absl::Time until = absl::Now() + kHung;
    for (absl::Status started; absl::Now() < until;) {
      auto next = Build("next", GetParam(), "", address);
      started = next->Start();
      if (started.ok()) break;
      EXPECT_TRUE(absl::IsUnavailable(started)) << started;
      absl::SleepFor(absl::Milliseconds(50));
    }
    EXPECT_LT(absl::Now(), until) << NameOf(where);
  }
}

// The executor's threads are the embedder's, so Stop() does not wait for the thread that calls it.
TEST_P(AnyState, CallbacksOnAnEmbeddersExecutorMayEndIt) {
  ThreadPoolExecutor threads(2, 1024);
  for (const bool destroy : {false, true}) {
    ServerConfig config = Build("self", GetParam())->config();
    auto server = *ServerBuilder().SetEnvironment({}).SetExecutor(&threads).Build(config);
    ASSERT_TRUE(server->Start().ok());
    const TensorKey own = Key(*server, server->worker(), "k");
    auto step = *server->steps()->StartStep(1);
    ASSERT_TRUE(step->Send(own, {}, Tensor(), true).ok());
    RecvArgs args;
    args.executor = &threads;
    absl::Notification left;
    step->RecvAsync(own, args, [&](Received&&) {
      InTime("the end on an embedder's executor", [&] {
        EXPECT_TRUE(server->Stop(absl::Seconds(5)).ok());
        CallAll(server.get(), "stopped on an embedder's executor");
        if (destroy) server.reset();
      });
      left.Notify();
    });
    step.reset();
    ASSERT_TRUE(left.WaitForNotificationWithTimeout(kHung));
  }
}

}  // namespace
}  // namespace tryst
