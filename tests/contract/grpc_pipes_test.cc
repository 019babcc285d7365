#include "channel/grpc/grpc_pipes.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "channel/grpc/byte_buffers.h"
#include "channel/grpc/grpc_pipe.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "tests/contract/grpc_nic.h"

namespace tryst {
namespace {

constexpr char kToken[] = "a token of all workers";

class GrpcPipesTest : public ::testing::TestWithParam<std::string> {
 protected:
  GrpcPipesTest()
      : net_(GrpcNet::Make(GetParam())), first_(net_->OpenNic()), second_(net_->OpenNic()) {
    auto listening = net_->pipes(0)->Listen();
    EXPECT_TRUE(listening.ok()) << listening.status();
    listener_ = *std::move(listening);
  }

  // Waits until the descriptor is readable, as a poller does that sleeps.
  static bool Wakes(int fd, int ms = 10'000) {
    pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, ms) == 1;
  }
  static ssize_t Send(SoftPipe* pipe, const std::string& text) {
    const iovec piece = {const_cast<char*>(text.data()), text.size()};
    return pipe->Send(&piece, 1);
  }
  // What comes until so much is there, the end has come, or ten seconds are over.
  static std::string Receive(SoftPipe* pipe, size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      char some[4096];
      const iovec piece = {some, std::min(sizeof(some), bytes - text.size())};
      const ssize_t got = pipe->Receive(&piece, 1);
      if (got > 0) {
        text.append(some, static_cast<size_t>(got));
      } else if (got == 0 || errno != EAGAIN || !Wakes(pipe->event_fd())) {
        break;
      }
    }
    return text;
  }
  // 0 once the peer has ended, else the error.
  static int EndOf(SoftPipe* pipe) {
    for (;;) {
      char byte;
      const iovec piece = {&byte, 1};
      const ssize_t got = pipe->Receive(&piece, 1);
      if (got == 0) return 0;
      if (got > 0) continue;
      if (errno != EAGAIN) return errno;
      if (!Wakes(pipe->event_fd())) return ETIMEDOUT;
    }
  }
  // Sends until there is no room for 300 ms, kFull at most. gRPC's own windows and the kernel's
  // take some megabytes.
  static constexpr size_t kFull = 64 << 20;
  static size_t FillUp(SoftPipe* pipe) {
    const std::string piece(100'000, 'x');
    size_t sent = 0;
    while (sent < kFull) {
      // This comes first, as it takes back that there is room.
      char byte;
      const iovec one = {&byte, 1};
      EXPECT_LT(pipe->Receive(&one, 1), 0);
      const ssize_t taken = Send(pipe, piece);
      if (taken > 0) sent += static_cast<size_t>(taken);
      if (taken < 0 && !Wakes(pipe->event_fd(), 300)) break;
    }
    return sent;
  }
  std::unique_ptr<SoftPipe> Accept() {
    while (Wakes(listener_->event_fd())) {
      if (std::unique_ptr<SoftPipe> came = listener_->Accept(); came != nullptr) return came;
    }
    return nullptr;
  }
  // Both ends of a connection, after a word in each direction.
  bool Connect(std::unique_ptr<SoftPipe>* caller, std::unique_ptr<SoftPipe>* callee) {
    *caller = net_->pipes(1)->Dial(listener_->address());
    if (*caller == nullptr || Send(caller->get(), "hello") != 5) return false;
    *callee = Accept();
    return *callee != nullptr && Receive(callee->get(), 5) == "hello" &&
           Send(callee->get(), "you") == 3 && Receive(caller->get(), 3) == "you";
  }

  const std::shared_ptr<GrpcNet> net_;
  const std::unique_ptr<Nic> first_;
  const std::unique_ptr<Nic> second_;
  std::vector<std::unique_ptr<Nic>> nics_;  // Further ones.
  std::unique_ptr<SoftPipes::Listener> listener_;
};

TEST_P(GrpcPipesTest, BytesArriveInOrderAndThenTheEnd) {
  for (const bool caller_sends : {true, false}) {
    std::unique_ptr<SoftPipe> caller, callee;
    ASSERT_TRUE(Connect(&caller, &callee));
    std::unique_ptr<SoftPipe>* const from = caller_sends ? &caller : &callee;
    SoftPipe* const to = caller_sends ? callee.get() : caller.get();
    std::string sent, got;
    for (int i = 0; sent.size() < (4u << 20); ++i) {
      const std::string piece(1 + i * 77 % 50'000, static_cast<char>(i));
      const ssize_t taken = Send(from->get(), piece);
      if (taken > 0) sent.append(piece, 0, static_cast<size_t>(taken));
      if (taken < 0) {
        ASSERT_EQ(errno, EAGAIN);
        got += Receive(to, 64 << 10);
      }
    }
    const std::string rest(300'000, 'r');
    for (ssize_t taken = 0; (taken = Send(from->get(), rest)) > 0;) {
      sent.append(rest, 0, static_cast<size_t>(taken));
    }
    from->reset();  // What waits for room still arrives.
    got += Receive(to, sent.size() - got.size());
    EXPECT_TRUE(got == sent);
    EXPECT_EQ(EndOf(to), 0);
  }
}

TEST_P(GrpcPipesTest, WhoEndsSendingStillReceives) {
  for (const bool caller_ends : {true, false}) {
    std::unique_ptr<SoftPipe> caller, callee;
    ASSERT_TRUE(Connect(&caller, &callee));
    SoftPipe* const ends = caller_ends ? caller.get() : callee.get();
    SoftPipe* const other = caller_ends ? callee.get() : caller.get();
    EXPECT_EQ(Send(ends, "last"), 4);
    ends->EndSending();
    EXPECT_EQ(Send(ends, "more"), -1);
    EXPECT_EQ(errno, EPIPE);
    EXPECT_EQ(Receive(other, 4), "last");
    EXPECT_EQ(EndOf(other), 0);
    EXPECT_EQ(Send(other, "answer"), 6);
    EXPECT_EQ(Receive(ends, 6), "answer");
  }
}

TEST_P(GrpcPipesTest, AnEndThatNobodyReadsHoldsLittleAndTellsOfRoom) {
  std::unique_ptr<SoftPipe> caller, callee;
  ASSERT_TRUE(Connect(&caller, &callee));
  const size_t sent = FillUp(caller.get());
  EXPECT_LT(sent, kFull);
  EXPECT_LE(caller->unsent(), 2 * GrpcPipe::kMostUnsent);
  EXPECT_EQ(Receive(callee.get(), sent).size(), sent);
  EXPECT_TRUE(Wakes(caller->event_fd())) << "there is room again";
  EXPECT_GT(Send(caller.get(), "more"), 0);
}

// What pieces belong to: how often it is kept at present, and how often it was.
struct CountingOwner {
  static std::shared_ptr<const void> Keep(const void* owner) {
    auto* const kept = static_cast<CountingOwner*>(const_cast<void*>(owner));
    ++kept->now;
    ++kept->ever;
    return std::shared_ptr<const void>(owner, [kept](const void*) { --kept->now; });
  }
  bool IsLetGo() const {
    for (int i = 0; i < 10'000 && now > 0; ++i) usleep(1000);
    return now == 0;
  }
  std::atomic<int> now{0};
  std::atomic<int> ever{0};
};

TEST_P(GrpcPipesTest, LargePartsAreKeptUntilTheyHaveLeft) {
  CountingOwner owner;
  std::unique_ptr<SoftPipe> caller, callee;
  ASSERT_TRUE(Connect(&caller, &callee));
  std::string small(100, 's'), large(300'000, 'l');
  const iovec pieces[] = {
      {&small[0], small.size()}, {&large[0], large.size()}, {&small[0], small.size()}};
  const void* const owners[] = {&owner, &owner, nullptr};
  const std::string all = small + large + small;
  EXPECT_EQ(caller->SendOf(pieces, owners, 3, &CountingOwner::Keep),
            static_cast<ssize_t>(all.size()));
  EXPECT_EQ(owner.ever, 1);
  EXPECT_TRUE(Receive(callee.get(), all.size()) == all);
  EXPECT_TRUE(owner.IsLetGo());
  // Nobody receives these.
  while (caller->SendOf(pieces, owners, 3, &CountingOwner::Keep) > 0) {
  }
  EXPECT_GT(owner.now, 0);
  caller.reset();
  callee.reset();
  EXPECT_TRUE(owner.IsLetGo());
}

TEST_P(GrpcPipesTest, ASleeperIsNotWokenInVain) {
  std::unique_ptr<SoftPipe> caller, callee;
  ASSERT_TRUE(Connect(&caller, &callee));
  EXPECT_TRUE(caller->Quiet());
  EXPECT_FALSE(Wakes(caller->event_fd(), 50));
  EXPECT_EQ(Send(callee.get(), "word"), 4);
  EXPECT_TRUE(Wakes(caller->event_fd()));
  EXPECT_FALSE(caller->Quiet());
  EXPECT_EQ(Receive(caller.get(), 4), "word");
}

TEST_P(GrpcPipesTest, AListenerThatIsGoneRefuses) {
  const std::string address = listener_->address();
  listener_.reset();
  const std::unique_ptr<SoftPipe> caller = net_->pipes(1)->Dial(address);
  ASSERT_NE(caller, nullptr);
  EXPECT_EQ(EndOf(caller.get()), 0);
  EXPECT_EQ(net_->pipes(1)->Dial("/job:w/task:7#1"), nullptr) << "nobody has this name";
  EXPECT_EQ(net_->pipes(1)->Dial("no address"), nullptr);
}

TEST_P(GrpcPipesTest, AListenerThatIsGoneHasLeftNoDescriptor) {
  const auto events = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::count_if(begin(all), end(all), [](const auto& one) {
      std::error_code gone;  // The directory's own, for one.
      return std::filesystem::read_symlink(one.path(), gone) == "anon_inode:[eventfd]";
    });
  };
  constexpr int kListeners = 100;
  const auto before = events();
  for (int i = 0; i < kListeners; ++i) {
    const auto listening = net_->pipes(0)->Listen();
    ASSERT_TRUE(listening.ok()) << listening.status();
  }
  EXPECT_LT(events() - before, kListeners) << "gRPC may have opened some meanwhile";
}

TEST_P(GrpcPipesTest, OneWorkerCannotOpenManyAndOnesThatLeaveMakeRoom) {
  std::vector<std::unique_ptr<SoftPipe>> callers(GrpcPipes::kMostFromOne), callees(callers.size());
  for (size_t i = 0; i < callers.size(); ++i) {
    ASSERT_TRUE(Connect(&callers[i], &callees[i])) << i;
  }
  const std::unique_ptr<SoftPipe> refused = net_->pipes(1)->Dial(listener_->address());
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(EndOf(refused.get()), 0);
  callers.pop_back();
  EXPECT_EQ(EndOf(callees.back().get()), 0);
  callees.pop_back();
  const absl::Time until = absl::Now() + absl::Seconds(10);
  // Beside those one waits for a peer's call.
  while (net_->pipes(0)->calls() > callees.size() + 1 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  std::unique_ptr<SoftPipe> caller, callee;
  EXPECT_TRUE(Connect(&caller, &callee));
}

// One worker may have as many as may wait, so another one makes one too many. Which of them comes
// last is gRPC's to say.
TEST_P(GrpcPipesTest, AListenerThatTakesNoneKeepsSoMany) {
  static_assert(GrpcPipes::kMostWaiting <= GrpcPipes::kMostFromOne);
  nics_.push_back(net_->OpenNic());
  std::vector<std::unique_ptr<SoftPipe>> callers;
  for (size_t i = 0; i <= GrpcPipes::kMostWaiting; ++i) {
    callers.push_back(net_->pipes(i == 0 ? 2 : 1)->Dial(listener_->address()));
    ASSERT_NE(callers.back(), nullptr) << i;
  }
  const auto has_ended = [](const std::unique_ptr<SoftPipe>& caller) {
    char byte;
    const iovec one = {&byte, 1};
    return caller->Receive(&one, 1) == 0;
  };
  const absl::Time until = absl::Now() + absl::Seconds(10);
  auto ended = callers.end();
  while (ended == callers.end() && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
    ended = std::find_if(callers.begin(), callers.end(), has_ended);
  }
  ASSERT_NE(ended, callers.end()) << "more wait than may";
  callers.erase(ended);
  std::vector<std::unique_ptr<SoftPipe>> callees;
  for (size_t i = 0; i < callers.size(); ++i) {
    callees.push_back(Accept());
    ASSERT_NE(callees.back(), nullptr) << i;
    EXPECT_EQ(Send(callees.back().get(), "you"), 3);
  }
  for (const auto& caller : callers) EXPECT_EQ(Receive(caller.get(), 3), "you");
  EXPECT_EQ(listener_->Accept(), nullptr);
}

// The callees stay, so nothing but the bound ends these calls.
TEST_P(GrpcPipesTest, CallsThatPeersDoNotEndMakeRoomForNewOnes) {
  std::vector<std::unique_ptr<SoftPipe>> callees;
  for (int round = 0; round < 2; ++round) {
    // Two workers, since one alone is let in so often.
    nics_.push_back(net_->OpenNic());
    auto listening = net_->pipes(2 + round)->Listen();
    ASSERT_TRUE(listening.ok()) << listening.status();
    listener_ = *std::move(listening);
    for (size_t i = 0; i < GrpcPipes::kMostFromOne; ++i) {
      std::unique_ptr<SoftPipe> caller, callee;
      ASSERT_TRUE(Connect(&caller, &callee)) << i;
      callees.push_back(std::move(callee));
    }
  }
  EXPECT_EQ(EndOf(callees.front().get()), 0);
  const absl::Time until = absl::Now() + absl::Seconds(10);
  const auto under_way = [&] { return net_->pipes(1)->calls(); };
  while (under_way() > GrpcPipes::kMostLeft + 1 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_LE(under_way(), GrpcPipes::kMostLeft + 1) << "one waits for a peer's call";
  callees.clear();
}

// As a peer that is restarted again and again has them.
TEST_P(GrpcPipesTest, CallsThatHaveEndedTakeNoRoomOfOneThatHasNot) {
  std::unique_ptr<SoftPipe> caller, callee;
  ASSERT_TRUE(Connect(&caller, &callee));
  caller.reset();  // Its peer does not end it.
  EXPECT_EQ(EndOf(callee.get()), 0);
  const std::string nobodys = listener_->address() + "0";
  for (size_t i = 0; i < GrpcPipes::kMostLeft + 6; ++i) {
    const std::unique_ptr<SoftPipe> refused = net_->pipes(1)->Dial(nobodys);
    ASSERT_NE(refused, nullptr);
    EXPECT_EQ(EndOf(refused.get()), 0) << i;
  }
  const absl::Time until = absl::Now() + absl::Seconds(10);
  const auto under_way = [&] { return net_->pipes(1)->calls(); };
  while (under_way() > 2 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(under_way(), 2u) << "the first, and one that waits for a peer's call";
}

TEST_P(GrpcPipesTest, ShutdownEndsWhatIsUnderWayAndLetsNothingBegin) {
  std::unique_ptr<SoftPipe> caller, callee;
  ASSERT_TRUE(Connect(&caller, &callee));
  net_->pipes(1)->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(EndOf(callee.get()), 0);
  EXPECT_EQ(EndOf(caller.get()), 0);
  EXPECT_EQ(net_->pipes(1)->Dial(listener_->address()), nullptr);
}

// The other end has read none of it by then.
TEST_P(GrpcPipesTest, ShutdownWaitsForWhatWasSentBeforeItsUserLeft) {
  std::unique_ptr<SoftPipe> caller, callee;
  ASSERT_TRUE(Connect(&caller, &callee));
  const size_t sent = FillUp(caller.get());
  caller.reset();
  std::atomic<bool> begun{false};
  std::thread stops([&] {
    begun = true;
    net_->pipes(1)->Shutdown(absl::Minutes(1));
  });
  while (!begun) sched_yield();
  EXPECT_EQ(Receive(callee.get(), sent).size(), sent);
  EXPECT_EQ(EndOf(callee.get()), 0);
  callee.reset();
  stops.join();
}

// A member that sends what it likes.
class GrpcPipesCallerTest : public GrpcPipesTest {
 protected:
  ~GrpcPipesCallerTest() override {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) continue;
  }
  std::string door() const {
    return std::vector<std::string>(absl::StrSplit(listener_->address(), '#'))[1];
  }
  // Calls with a statement that covers `signed_for`.
  void Call(const std::string& signed_for) {
    CallSigner signer({"lab", "/job:x/task:0", 0xd0}, GetParam(), [] { return UnixMs(); });
    context_.AddMetadata(kCallerMetadata,
                         signer.Sign(GrpcNet::WorkerName(0), kConverseMethod, signed_for));
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", net_->port(0)),
                                   grpc::InsecureChannelCredentials());
    grpc::GenericStub stub(channel_);
    call_ = stub.PrepareCall(&context_, kConverseMethod, &queue_);
    call_->StartCall(this);
    Done();
  }
  bool Done() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  bool Write(const std::string& bytes) {
    call_->Write(BufferOf(bytes), this);
    return Done();
  }
  grpc::StatusCode End() {
    grpc::Status status;
    call_->Finish(&status, this);
    Done();
    return status.error_code();
  }

  grpc::CompletionQueue queue_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

TEST_P(GrpcPipesCallerTest, TheStatementCoversTheListener) {
  if (GetParam().empty()) GTEST_SKIP() << "without a token no statement is checked";
  Call("another");
  Write(door());
  EXPECT_EQ(End(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_FALSE(Wakes(listener_->event_fd(), 50));
}

// Whoever can connect can do that.
TEST_P(GrpcPipesCallerTest, CallsThatSayNothingTakeNoDescriptorsAndMakeRoom) {
  struct Silent final {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::Status status;
  };
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  Call("x1");  // It connects.
  Write("x1");
  EXPECT_EQ(End(), grpc::StatusCode::NOT_FOUND);
  const auto before = descriptors();
  grpc::GenericStub stub(channel_);
  std::vector<std::unique_ptr<Silent>> silent;
  for (size_t i = 0; i < GrpcPipes::kMostSilent + 20; ++i) {
    silent.push_back(std::make_unique<Silent>());
    silent.back()->call = stub.PrepareCall(&silent.back()->context, kConverseMethod, &queue_);
    silent.back()->call->StartCall(this);
    ASSERT_TRUE(Done());
  }
  for (const auto& one : silent) one->call->Finish(&one->status, one.get());
  std::set<void*> ended;
  for (size_t i = 0; i < 20; ++i) {
    void* one;
    bool ok = false;
    ASSERT_TRUE(queue_.Next(&one, &ok));
    ended.insert(one);
  }
  // The oldest make room. Threads of gRPC may hear of some calls that came together in another
  // order, but not of the last before most.
  size_t old = 0;
  for (size_t i = 0; i < GrpcPipes::kMostSilent; ++i) {
    if (ended.count(silent[i].get()) == 0) continue;
    ++old;
    EXPECT_EQ(silent[i]->status.error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(old, 20u);
  EXPECT_EQ(ended.count(silent.back().get()), 0u);
  EXPECT_LT(descriptors(), before + 20);
  std::unique_ptr<SoftPipe> caller, callee;
  EXPECT_TRUE(Connect(&caller, &callee));
  for (const auto& one : silent) one->context.TryCancel();
  for (size_t i = 20; i < silent.size(); ++i) {
    void* ended;
    bool ok = false;
    ASSERT_TRUE(queue_.Next(&ended, &ok));
  }
}

TEST_P(GrpcPipesCallerTest, NoListenerNoConnection) {
  Call("x1");
  Write("x1");
  EXPECT_EQ(End(), grpc::StatusCode::NOT_FOUND);
}

TEST_P(GrpcPipesCallerTest, WhatIsNotOursEndsTheConnection) {
  Call(door());
  ASSERT_TRUE(Write(door()));
  const std::unique_ptr<SoftPipe> callee = Accept();
  ASSERT_NE(callee, nullptr);
  // Nobody seals what he does not know the token for; without one, no end of ours sends so much.
  Write(GetParam().empty() ? std::string(GrpcPipe::kLargestMessage + 1, 'x') : "in the clear");
  EXPECT_EQ(EndOf(callee.get()), EPROTO);
  EXPECT_EQ(End(), grpc::StatusCode::CANCELLED);
}

INSTANTIATE_TEST_SUITE_P(Grpc, GrpcPipesTest, ::testing::Values("", kToken),
                         [](const auto& info) { return info.param.empty() ? "Plain" : "Sealed"; });
INSTANTIATE_TEST_SUITE_P(Grpc, GrpcPipesCallerTest, ::testing::Values("", kToken),
                         [](const auto& info) { return info.param.empty() ? "Plain" : "Sealed"; });

}  // namespace
}  // namespace tryst
