// GrpcChannel against TransportService over loopback TCP, while connections break in every way.
#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "channel/compat/fetch_server.h"
#include "channel/compat/grpc_channel.h"
#include "channel/grpc/event_thread.h"
#include "channel/grpc/grpc_bootstrap.h"
#include "channel/signing/caller.h"
#include "gtest/gtest.h"
#include "proto/transport.grpc.pb.h"
#include "rendezvous/derived_status.h"
#include "rendezvous/executor.h"
#include "rendezvous/thread_alarms.h"
#include "server/members/membership.h"
#include "server/services/transport_service.h"
#include "tests/doubles/server/cut_proxy.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:ps/replica:0/task:0";
constexpr char kConsumer[] = "/job:worker/replica:0/task:0";

TensorKey Key(const std::string& edge) {
  return *TensorKey::Parse(absl::StrCat(kProducer, "/device:CPU:0;0000000000000001;", kConsumer,
                                        "/device:CPU:0;", edge, ";0:0"));
}

Tensor Floats(int64_t count, float first) {
  Tensor tensor = *Tensor::Allocate(DType::kFloat, TensorShape({count}));
  for (int64_t i = 0; i < count; ++i) {
    static_cast<float*>(tensor.mutable_data())[i] = first + static_cast<float>(i);
  }
  return tensor;
}

void ExpectFloats(const Tensor& tensor, int64_t count, float first) {
  ASSERT_EQ(tensor.dtype(), DType::kFloat);
  ASSERT_EQ(tensor.shape().elements(), count);
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(tensor.data_as<float>()[i], first + static_cast<float>(i)) << i;
  }
}

// Stands for a step's rendezvous behind a FetchServer.
class FakeSource final : public TensorSource {
 public:
  struct Item {
    Tensor tensor;
    bool is_dead = false;
  };
  struct Waiting {
    uint64_t id;
    CancellationRef cancellation;
    Cancellation::Token token;
    DoneFn done;
  };

  void Take(int64_t step_id, const TensorKey& key, const RecvArgs& args, DoneFn done) override {
    const auto at = std::make_pair(step_id, std::string(key.text()));
    Item item;
    {
      MutexLock lock(&mu_);
      ++takes_;
      auto& items = items_[at];
      if (items.empty()) {
        const uint64_t id = ++next_;
        auto token = args.cancellation->Register([this, at, id] { Cancel(at, id); });
        if (token != Cancellation::kNoToken) {
          waiting_[at].push_back({id, args.cancellation, token, std::move(done)});
          return;
        }
        items.push_back({});  // It was cancelled already, so it fails below.
        cancelled_ = true;
      }
      item = items.front();
      items.pop_front();
    }
    if (cancelled_) return std::move(done)({absl::CancelledError("c")});
    if (hold_.exchange(false)) {
      held_ = item.tensor;
      held_done_ = std::move(done);
      return;
    }
    std::move(done)({absl::OkStatus(), item.tensor, item.is_dead});
  }

  // A tensor given back goes before those that were sent later, as the contract says.
  void GiveBack(int64_t step_id, const TensorKey& key, Received taken) override {
    Send(step_id, key, std::move(taken.tensor), taken.is_dead, /*in_front=*/true);
  }

  void Send(int64_t step_id, const TensorKey& key, Tensor tensor, bool is_dead = false,
            bool in_front = false) {
    const auto at = std::make_pair(step_id, std::string(key.text()));
    Waiting waiting;
    {
      MutexLock lock(&mu_);
      auto& queue = waiting_[at];
      if (queue.empty()) {
        auto& items = items_[at];
        items.insert(in_front ? items.begin() : items.end(), {std::move(tensor), is_dead});
        return;
      }
      waiting = std::move(queue.front());
      queue.pop_front();
    }
    waiting.cancellation->Deregister(waiting.token);
    std::move(waiting.done)({absl::OkStatus(), std::move(tensor), is_dead});
  }

  // The next take gets its tensor, but answers only when Answer() is called, even if it is
  // cancelled meanwhile: as a take that copies from a device does.
  void HoldNextAnswer() { hold_ = true; }
  void Answer() {
    ASSERT_TRUE(held_.valid());
    std::move(held_done_)({absl::OkStatus(), std::move(held_)});
  }

  void Fail(int64_t step_id, const TensorKey& key, const absl::Status& why) {
    const auto at = std::make_pair(step_id, std::string(key.text()));
    Waiting waiting;
    {
      MutexLock lock(&mu_);
      waiting = std::move(waiting_[at].front());
      waiting_[at].pop_front();
    }
    waiting.cancellation->Deregister(waiting.token);
    std::move(waiting.done)({why});
  }

  int takes() {
    MutexLock lock(&mu_);
    return takes_;
  }
  int cancels() {
    MutexLock lock(&mu_);
    return cancels_;
  }
  size_t waiting() {
    MutexLock lock(&mu_);
    size_t count = 0;
    for (auto& [at, queue] : waiting_) count += queue.size();
    return count;
  }

 private:
  using At = std::pair<int64_t, std::string>;
  void Cancel(const At& at, uint64_t id) {
    DoneFn done;
    {
      MutexLock lock(&mu_);
      auto& queue = waiting_[at];
      for (auto it = queue.begin(); it != queue.end(); ++it) {
        if (it->id != id) continue;
        done = std::move(it->done);
        queue.erase(it);
        ++cancels_;
        break;
      }
    }
    if (done) std::move(done)({absl::CancelledError("cancelled")});
  }

  Mutex mu_;
  std::map<At, std::deque<Item>> items_;
  std::map<At, std::deque<Waiting>> waiting_;
  uint64_t next_ = 0;
  int takes_ = 0;
  int cancels_ = 0;
  bool cancelled_ = false;
  std::atomic<bool> hold_{false};
  Tensor held_;
  DoneFn held_done_;
};

// A producer with every part of a server that a fetch uses.
class Producer final : public HelloHandler {
 public:
  explicit Producer(uint64_t incarnation, int port = 0, std::string token = "",
                    FetchServerOptions options = {}, Executor* executor = nullptr)
      : verifier_("lab", kProducer, incarnation, token, [] { return UnixMs(); }),
        members_(false, nullptr),
        fetches_(
            &source, &alarms_, incarnation,
            [this, incarnation](const grpc::ServerContextBase& context, absl::string_view request) {
              NoteBatch(incarnation, request);
              return Authenticate(context, "/tryst.rpc.TransportService/FetchTensor", request);
            },
            [](const Caller& caller, const TensorKey& key) {
              return key.dst().worker == caller.worker ? absl::OkStatus()
                                                       : absl::PermissionDeniedError("not for you");
            },
            options) {
    members_.Set(kConsumer, "");
    TransportServiceParts parts;
    parts.self = {"lab", kProducer, incarnation};
    parts.token = token;
    parts.address = [] { return ""; };
    parts.members = &members_;
    parts.hellos = this;
    parts.executor = executor;
    parts.authenticate = [this](const grpc::ServerContextBase& context, absl::string_view method,
                                absl::string_view request) {
      return Authenticate(context, method, request);
    };
    service_ = MakeTransportService(std::move(parts));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(service_->service());
    auto queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    grpc::ServerCompletionQueue* const server_queue = queue.get();
    events_ = std::make_unique<EventThread>(std::move(queue), std::vector<Poller*>());
    service_->Start(server_queue);
    fetches_.Start(server_queue, service_->next_fetch());
  }
  ~Producer() override {
    fetches_.Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
    service_->Join();
    fetches_.Join();
  }

  absl::StatusOr<Caller> Authenticate(const grpc::ServerContextBase& context,
                                      absl::string_view method, absl::string_view request) {
    std::string statement;
    auto said = context.client_metadata().find(kCallerMetadata);
    if (said != context.client_metadata().end()) {
      statement.assign(said->second.data(), said->second.size());
    }
    return verifier_.Verify(statement, method, request);
  }

  void OnHello(const Hello& hello, HelloDone done) override {
    Hello answer = hello;
    answer.worker = kProducer;
    answer.parameters = "answer to " + hello.parameters;
    std::move(done)(answer);
  }

  int port() const { return port_; }
  FetchServer::Counts counts() const { return fetches_.counts(); }
  // Keeps the first note of what has ended, with all that comes after it, until LetNotesGo().
  void HoldNotes() { hold_notes_ = true; }
  void LetNotesGo() { notes_go_.Notify(); }
  int notes() const { return notes_; }
  // What each request of a batch that was meant for this life said it had heard of its answers.
  std::vector<uint64_t> heard() {
    MutexLock lock(&mu_);
    return heard_;
  }

  FakeSource source;

 private:
  void NoteBatch(uint64_t incarnation, absl::string_view bytes) {
    rpc::FetchRequest request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    if (request.ends()) ++notes_;
    if (request.ends() && hold_notes_.exchange(false)) notes_go_.WaitForNotification();
    if (!request.waits() || request.producer_incarnation() != incarnation) return;
    MutexLock lock(&mu_);
    heard_.push_back(request.heard());
  }

  Mutex mu_;
  std::vector<uint64_t> heard_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> hold_notes_{false};
  std::atomic<int> notes_{0};
  absl::Notification notes_go_;
  ThreadAlarms alarms_;
  CallVerifier verifier_;
  Membership members_;
  FetchServer fetches_;
  std::unique_ptr<TransportService> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<EventThread> events_;
};

struct Result {
  absl::Status status;
  Tensor tensor;
  bool is_dead = false;
  absl::Notification done;
  const Result& Wait() {
    if (!done.WaitForNotificationWithTimeout(absl::Seconds(20)))
      status = absl::InternalError("hung");
    return *this;
  }
};

class Consumer {
 public:
  explicit Consumer(int port, uint64_t incarnation = 77, std::string token = "",
                    GrpcChannelOptions options = {})
      : members(false,
                [](const std::string&, const std::string& address) {
                  grpc::ChannelArguments args;
                  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
                  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
                  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
                  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
                  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                                   args);
                }),
        signer({"lab", kConsumer, incarnation}, std::move(token),
               [this] { return UnixMs() + clock_ahead_ms; }),
        poller(&clock) {
    MoveTo(port);
    channel =
        std::make_unique<GrpcChannel>(kProducer, &members, &signer, &events, &poller, options);
    poller.Start();
  }
  ~Consumer() {
    poller.RunAndWait([this] { channel->Close(absl::CancelledError("test over")); });
    for (bool drained = false; !drained;) {
      poller.RunAndWait([&] { drained = channel->Drained(); });
    }
    poller.Stop();
  }
  void MoveTo(int port) { members.Set(kProducer, absl::StrCat("127.0.0.1:", port)); }

  std::shared_ptr<Result> Fetch(int64_t step, const TensorKey& key, RecvArgs args = {}) {
    auto result = std::make_shared<Result>();
    poller.RunAndWait([&] {
      channel->Fetch(step, key, args, [result](Received&& received) {
        result->status = std::move(received.status);
        result->tensor = std::move(received.tensor);
        result->is_dead = received.is_dead;
        result->done.Notify();
      });
    });
    return result;
  }

  std::atomic<int64_t> clock_ahead_ms{0};
  SteadyClock clock;
  Membership members;
  CallSigner signer;
  Poller poller;
  EventThread events{std::make_unique<grpc::CompletionQueue>(), std::vector<Poller*>{&poller}};
  std::unique_ptr<GrpcChannel> channel;
};

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

TEST(GrpcPath, CarriesEverySortOfTensor) {
  Producer producer(5);
  Consumer consumer(producer.port());

  producer.source.Send(1, Key("small"), Floats(3, 1));
  auto small = consumer.Fetch(1, Key("small"));
  ASSERT_TRUE(small->Wait().status.ok()) << small->status;
  ExpectFloats(small->tensor, 3, 1);

  auto waits = consumer.Fetch(1, Key("later"));
  producer.source.Send(1, Key("later"), Floats(7 << 20, 2));  // 28 MiB, many chunks.
  ASSERT_TRUE(waits->Wait().status.ok()) << waits->status;
  ExpectFloats(waits->tensor, 7 << 20, 2);

  producer.source.Send(1, Key("dead"), Tensor(), true);
  auto dead = consumer.Fetch(1, Key("dead"));
  ASSERT_TRUE(dead->Wait().status.ok()) << dead->status;
  EXPECT_TRUE(dead->is_dead);
  EXPECT_FALSE(dead->tensor.valid());

  producer.source.Send(1, Key("empty"), *Tensor::Allocate(DType::kInt64, TensorShape({0, 4})));
  auto empty = consumer.Fetch(1, Key("empty"));
  ASSERT_TRUE(empty->Wait().status.ok()) << empty->status;
  EXPECT_EQ(empty->tensor.shape(), TensorShape({0, 4}));
  EXPECT_EQ(empty->tensor.dtype(), DType::kInt64);

  const std::vector<std::string> words = {"", "tryst", std::string(3 << 20, 'x'), "end"};
  producer.source.Send(1, Key("words"), *Tensor::FromStrings(words, TensorShape({2, 2})));
  auto strings = consumer.Fetch(1, Key("words"));
  ASSERT_TRUE(strings->Wait().status.ok()) << strings->status;
  EXPECT_EQ(strings->tensor.shape(), TensorShape({2, 2}));
  EXPECT_TRUE(std::equal(words.begin(), words.end(), strings->tensor.strings().begin()));

  EXPECT_TRUE(Eventually([&] { return producer.counts().tensors == 5; }));
  EXPECT_EQ(producer.counts().waiting, 0u);
}

TEST(GrpcPath, FillsTheDestinationOrSaysWhyNot) {
  Producer producer(5);
  Consumer consumer(producer.port());
  RecvArgs args;
  args.destination = *Tensor::Allocate(DType::kFloat, TensorShape({1000}));
  producer.source.Send(1, Key("a"), Floats(1000, 9));
  auto filled = consumer.Fetch(1, Key("a"), args);
  ASSERT_TRUE(filled->Wait().status.ok()) << filled->status;
  EXPECT_EQ(filled->tensor.data(), args.destination.data());
  ExpectFloats(args.destination, 1000, 9);

  producer.source.Send(1, Key("b"), Floats(999, 9));
  auto refused = consumer.Fetch(1, Key("b"), args);
  EXPECT_TRUE(absl::IsInvalidArgument(refused->Wait().status)) << refused->status;
  ExpectFloats(args.destination, 1000, 9);   // The destination was not touched.
  auto again = consumer.Fetch(1, Key("b"));  // The producer still has the tensor.
  ASSERT_TRUE(again->Wait().status.ok()) << again->status;
  ExpectFloats(again->tensor, 999, 9);

  RecvArgs strings;
  strings.destination = *Tensor::Allocate(DType::kString, TensorShape({2}));
  producer.source.Send(1, Key("c"), *Tensor::FromStrings({"x", "yy"}, TensorShape({2})));
  auto words = consumer.Fetch(1, Key("c"), strings);
  ASSERT_TRUE(words->Wait().status.ok()) << words->status;
  EXPECT_EQ(strings.destination.strings()[1], "yy");
}

// Until then the producer may hold the tensor, and over another path the next fetch of the key
// would get a later one.
TEST(GrpcPath, AnEndIsOwedUntilTheProducerHasHeardOfIt) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  auto first = consumer.Fetch(1, Key("k"), args);
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 1; }));
  const auto out = [&] {
    size_t count = 0;
    consumer.poller.RunAndWait([&] { count = consumer.channel->fetches_out(); });
    return count;
  };
  EXPECT_EQ(out(), 1u);
  proxy.Refuse(true);
  proxy.CutNow();
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status));
  EXPECT_EQ(out(), 1u) << "the producer has not heard of it";
  proxy.Refuse(false);
  EXPECT_TRUE(Eventually([&] { return out() == 0; }));
}

TEST(GrpcPath, ACancelledFetchConsumesNothing) {
  Producer producer(5);
  Consumer consumer(producer.port());
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  auto first = consumer.Fetch(1, Key("k"), args);
  // It is still open, so oldest_serial does not advance.
  auto second = consumer.Fetch(1, Key("other"));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 2; }));
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status));
  EXPECT_TRUE(IsDerived(first->status));
  // If the stream has not told the producer which fetches ended, the next fetch of the key does.
  auto third = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer.source.takes() == 3; }));
  EXPECT_EQ(producer.source.cancels(), 1);
  producer.source.Send(1, Key("k"), Floats(2, 4));
  ASSERT_TRUE(third->Wait().status.ok()) << third->status;
  ExpectFloats(third->tensor, 2, 4);
  auto late = consumer.Fetch(1, Key("k"), args);
  EXPECT_TRUE(absl::IsCancelled(late->Wait().status));
}

// The cancel may come before the reply begins, while it is under way, or after it has landed.
// A Cancellation may be for many fetches, and may outlive the channel.
TEST(GrpcPath, AFetchThatHasEndedHearsOfNoCancel) {
  Producer producer(5);
  Cancellation cancellation, later;
  {
    Consumer consumer(producer.port());
    constexpr int kFetches = 300;
    for (int i = 0; i < kFetches; ++i) {
      RecvArgs args;
      args.cancellation = i + 1 < kFetches ? &cancellation : &later;
      producer.source.Send(1, Key("k"), Floats(1, 1));
      ASSERT_TRUE(consumer.Fetch(1, Key("k"), args)->Wait().status.ok());
    }
    uint64_t before = 0, after = 0;
    consumer.poller.RunAndWait([&] { before = consumer.poller.tasks_run(); });
    cancellation.StartCancel();
    consumer.poller.RunAndWait([&] { after = consumer.poller.tasks_run(); });
    EXPECT_LT(after - before, kFetches / 3) << "the poller hears of each";
  }
  later.StartCancel();  // Would use what is gone.
}

TEST(GrpcPath, WhatACancelledFetchHadMetGoesToTheNextOne) {
  Producer producer(5);
  Consumer consumer(producer.port());
  uint64_t cancelled = 0;
  for (int i = 0; i < 60; ++i) {
    const int64_t elements = i % 2 == 0 ? 100 : 1 << 20;
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    auto first = consumer.Fetch(1, Key("k"), args);
    producer.source.Send(1, Key("k"), Floats(elements, static_cast<float>(i)));
    absl::SleepFor(absl::Microseconds(i * 60));
    cancellation.StartCancel();
    std::shared_ptr<Result> result = first;
    if (absl::IsCancelled(first->Wait().status)) {
      ++cancelled;
      result = consumer.Fetch(1, Key("k"));
    }
    ASSERT_TRUE(result->Wait().status.ok()) << i << ": " << result->status;
    ExpectFloats(result->tensor, elements, static_cast<float>(i));
  }
  EXPECT_GT(cancelled, 0u);
  // A fetch that ended before the take got its tensor had nothing to give back.
  EXPECT_LE(producer.counts().given_back, cancelled);
  EXPECT_GT(producer.counts().given_back, 0u);
}

// The fetch is cancelled while the source has its tensor and has not answered. The next request
// arrives before the tensor is given back. A tensor that was sent later must not overtake it.
TEST(GrpcPath, ALaterSendDoesNotOvertakeWhatIsStillToBeGivenBack) {
  Producer producer(5);
  Consumer consumer(producer.port());
  producer.source.Send(1, Key("k"), Floats(2, 10));
  producer.source.Send(1, Key("k"), Floats(2, 20));
  producer.source.HoldNextAnswer();
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  auto first = consumer.Fetch(1, Key("k"), args);
  ASSERT_TRUE(Eventually([&] { return producer.source.takes() == 1; }));
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status));
  auto second = consumer.Fetch(1, Key("k"));
  // Requests arrive in order, so the second request has arrived when this one is answered.
  auto other = consumer.Fetch(1, Key("other"));
  ASSERT_TRUE(Eventually([&] { return producer.counts().requests == 3; }));
  EXPECT_FALSE(second->done.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  producer.source.Answer();
  ASSERT_TRUE(second->Wait().status.ok()) << second->status;
  ExpectFloats(second->tensor, 2, 10);
  auto third = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(third->Wait().status.ok()) << third->status;
  ExpectFloats(third->tensor, 2, 20);
  producer.source.Send(1, Key("other"), Floats(1, 1));
  EXPECT_TRUE(other->Wait().status.ok());
}

// The connection breaks before the producer hears of the cancel. The next request repeats it.
TEST(GrpcPath, WhatACancelledFetchHadMetComesBackOverANewConnection) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  proxy.CutAfterBytes(1 << 20);  // The tensor is larger, so it never arrives whole.
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  auto first = consumer.Fetch(1, Key("k"), args);
  producer.source.Send(1, Key("k"), Floats(8 << 20, 6));
  ASSERT_TRUE(Eventually([&] { return proxy.bytes_back() > 1 << 20; }));
  proxy.Refuse(true);
  proxy.CutNow();
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(first->Wait().status)) << first->status;
  EXPECT_EQ(producer.counts().given_back, 0u);
  proxy.CutAfterBytes(-1);
  proxy.Refuse(false);
  auto next = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(next->Wait().status.ok()) << next->status;
  ExpectFloats(next->tensor, 8 << 20, 6);
  EXPECT_EQ(producer.counts().given_back, 1u);
  EXPECT_TRUE(Eventually([&] { return producer.counts().tensors == 1; }));
}

TEST(GrpcPath, DeadlineAndAbortEndWhatWaits) {
  Producer producer(5);
  Consumer consumer(producer.port());
  RecvArgs args;
  args.deadline = Deadline::After(consumer.clock, absl::Milliseconds(100));
  auto late = consumer.Fetch(1, Key("k"), args);
  auto aborted = consumer.Fetch(2, Key("k"));
  auto other = consumer.Fetch(3, Key("k"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late->Wait().status)) << late->status;
  EXPECT_TRUE(Eventually([&] { return producer.source.waiting() == 2; }));
  consumer.poller.RunAndWait(
      [&] { consumer.channel->AbortStep(2, absl::AbortedError("the cause")); });
  EXPECT_EQ(aborted->Wait().status, MarkDerived(absl::AbortedError("the cause")));
  EXPECT_TRUE(Eventually([&] { return producer.source.cancels() == 2; }));
  producer.source.Send(3, Key("k"), Floats(1, 1));
  EXPECT_TRUE(other->Wait().status.ok()) << other->status;
}

TEST(GrpcPath, AProducersFailureArrivesAsItIs) {
  Producer producer(5);
  Consumer consumer(producer.port());
  auto failed = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 1; }));
  producer.source.Fail(1, Key("k"), MarkDerived(absl::OutOfRangeError("no more rows")));
  EXPECT_TRUE(absl::IsOutOfRange(failed->Wait().status)) << failed->status;
  EXPECT_EQ(failed->status.message(), "no more rows");
  EXPECT_TRUE(IsDerived(failed->status));
}

TEST(GrpcPath, ALostReplyIsFetchedAgainAndTakenOnce) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  // The connection is cut in the middle of the tensor several times. Each time the transfer goes on
  // where it stopped.
  proxy.CutAfterBytes(3 << 20);
  producer.source.Send(1, Key("big"), Floats(4 << 20, 3));  // 16 MiB
  auto big = consumer.Fetch(1, Key("big"));
  ASSERT_TRUE(big->Wait().status.ok()) << big->status;
  ExpectFloats(big->tensor, 4 << 20, 3);
  EXPECT_EQ(producer.source.takes(), 1);
  EXPECT_GE(proxy.connections(), 4);
  EXPECT_GE(producer.counts().repetitions, 3u);
  // Each connection but the last brings 3 MiB, of which one whole message counts at least: up to
  // two more may have come only in part, or lie where nobody has read them.
  EXPECT_LE(proxy.connections(), 17);

  // The connection is cut while the fetch waits: the source does not get the request twice.
  proxy.CutAfterBytes(-1);
  auto waits = consumer.Fetch(1, Key("later"));
  ASSERT_TRUE(Eventually([&] { return producer.source.takes() == 2; }));
  const uint64_t repetitions = producer.counts().repetitions;
  proxy.CutNow();
  ASSERT_TRUE(Eventually([&] { return producer.counts().repetitions > repetitions; }));
  producer.source.Send(1, Key("later"), Floats(1, 8));
  ASSERT_TRUE(waits->Wait().status.ok()) << waits->status;
  ExpectFloats(waits->tensor, 1, 8);
  EXPECT_EQ(producer.source.takes(), 2);
  EXPECT_TRUE(Eventually([&] { return producer.counts().tensors == 2; }));
}

// A tensor of 5 MiB with one run that the proxy can damage, in the last MiB but one.
Tensor Damageable() {
  constexpr int64_t kMiB = 1 << 20;
  Tensor tensor = *Tensor::Allocate(DType::kUint8, TensorShape({5 * kMiB}));
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data());
  for (int64_t i = 0; i < 5 * kMiB; ++i) bytes[i] = static_cast<uint8_t>(i % 251);
  memset(bytes + 3 * kMiB + 7, 0xd5, 40'000);
  return tensor;
}

TEST(GrpcPath, AChangedBitIsNoticedAndTheBytesAreFetchedAgain) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  GrpcChannelOptions options;
  options.digests = true;
  Consumer consumer(proxy.port(), 77, "", options);
  const Tensor sent = Damageable();
  producer.source.Send(1, Key("once"), sent);
  proxy.DamageRuns(1);
  auto once = consumer.Fetch(1, Key("once"));
  ASSERT_TRUE(once->Wait().status.ok()) << once->status;
  EXPECT_EQ(memcmp(once->tensor.data(), sent.data(), sent.bytes()), 0);
  EXPECT_EQ(proxy.damaged(), 1);
  EXPECT_EQ(producer.counts().repetitions, 1u);
  EXPECT_EQ(producer.source.takes(), 1);

  // The fetch gives up after some damaged replies, and the producer keeps the tensor.
  producer.source.Send(1, Key("always"), sent);
  proxy.DamageRuns(1'000'000);
  auto always = consumer.Fetch(1, Key("always"));
  EXPECT_EQ(always->Wait().status.code(), absl::StatusCode::kDataLoss) << always->status;
  EXPECT_NE(always->status.message().find("digest is wrong"), std::string::npos);
  EXPECT_GE(proxy.damaged(), 3);
  proxy.DamageRuns(0);
  ASSERT_TRUE(Eventually([&] { return producer.counts().sending == 0; }));
  auto then = consumer.Fetch(1, Key("always"));
  ASSERT_TRUE(then->Wait().status.ok()) << then->status;
  EXPECT_EQ(memcmp(then->tensor.data(), sent.data(), sent.bytes()), 0);
}

TEST(GrpcPath, WithoutDigestsNobodyNoticesAChangedBit) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  const Tensor sent = Damageable();
  producer.source.Send(1, Key("once"), sent);
  proxy.DamageRuns(1);
  auto once = consumer.Fetch(1, Key("once"));
  ASSERT_TRUE(once->Wait().status.ok()) << once->status;
  EXPECT_NE(memcmp(once->tensor.data(), sent.data(), sent.bytes()), 0);
}

TEST(GrpcPath, ATensorSentWhileTheConsumerIsAwayIsKeptForIt) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  auto waits = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 1; }));
  proxy.Refuse(true);
  proxy.CutNow();
  ASSERT_TRUE(Eventually([&] { return producer.counts().alone == 1; }));
  producer.source.Send(1, Key("k"), Floats(5, 5));
  EXPECT_TRUE(Eventually([&] { return producer.counts().kept_bytes == 20; }));
  proxy.Refuse(false);
  ASSERT_TRUE(waits->Wait().status.ok()) << waits->status;
  ExpectFloats(waits->tensor, 5, 5);
  EXPECT_EQ(producer.source.takes(), 1);
  EXPECT_TRUE(Eventually([&] { return producer.counts().kept_bytes == 0; }));
}

TEST(GrpcPath, NobodyComesBackForWhatIsDroppedInTheEnd) {
  FetchServerOptions options;
  options.keep_for = absl::Milliseconds(100);
  Producer producer(5, 0, "", options);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  auto waits = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 1; }));
  proxy.Refuse(true);
  proxy.CutNow();
  ASSERT_TRUE(Eventually([&] { return producer.source.cancels() == 1; }));
  EXPECT_EQ(producer.counts().dropped, 1u);
  proxy.Refuse(false);
  // The fetch fails now. It does not wait for a tensor that another fetch may have taken.
  EXPECT_TRUE(absl::IsAborted(waits->Wait().status)) << waits->status;
}

TEST(GrpcPath, KeepsNoMoreThanItsBudgetForTheAbsent) {
  FetchServerOptions options;
  options.max_kept_bytes = 100;
  Producer producer(5, 0, "", options);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  auto a = consumer.Fetch(1, Key("a"));
  auto b = consumer.Fetch(1, Key("b"));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 2; }));
  proxy.Refuse(true);
  proxy.CutNow();
  ASSERT_TRUE(Eventually([&] { return producer.counts().alone == 2; }));
  producer.source.Send(1, Key("a"), Floats(20, 1));
  producer.source.Send(1, Key("b"), Floats(20, 1));
  EXPECT_TRUE(Eventually([&] { return producer.counts().dropped == 1; }));
  EXPECT_LE(producer.counts().kept_bytes, 100u);
  proxy.Refuse(false);
  a->Wait();
  b->Wait();
  EXPECT_EQ(a->status.ok() + b->status.ok(), 1);
  EXPECT_EQ(absl::IsAborted(a->status) + absl::IsAborted(b->status), 1);
  // No byte of the dropped tensor had been sent, so it went back and another fetch finds it.
  auto dropped = consumer.Fetch(1, Key(a->status.ok() ? "b" : "a"));
  ASSERT_TRUE(dropped->Wait().status.ok()) << dropped->status;
  ExpectFloats(dropped->tensor, 20, 1);
}

TEST(GrpcPath, AConsumerAsksForSoMuchAtOnce) {
  for (const bool by_bytes : {false, true}) {
    FetchServerOptions options;
    if (by_bytes) {
      options.max_key_bytes = 2 * Key("a").text().size();
    } else {
      options.max_requests = 2;
    }
    Producer producer(5, 0, "", options);
    Consumer consumer(producer.port());
    auto a = consumer.Fetch(1, Key("a"));
    auto b = consumer.Fetch(1, Key("b"));
    ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 2; }));
    auto c = consumer.Fetch(1, Key("c"));
    EXPECT_TRUE(absl::IsResourceExhausted(c->Wait().status)) << c->status;
    producer.source.Send(1, Key("a"), Floats(1, 1));
    ASSERT_TRUE(a->Wait().status.ok()) << a->status;
    ASSERT_TRUE(Eventually([&] { return producer.counts().tensors == 1; }));
    auto d = consumer.Fetch(1, Key("d"));
    ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 2; }));
    producer.source.Send(1, Key("b"), Floats(1, 1));
    producer.source.Send(1, Key("d"), Floats(1, 1));
    EXPECT_TRUE(b->Wait().status.ok()) << b->status;
    EXPECT_TRUE(d->Wait().status.ok()) << d->status;
  }
}

TEST(GrpcPath, ARestartedProducerFailsWhatWaitedAndServesTheNext) {
  auto producer = std::make_unique<Producer>(5);
  const int port = producer->port();
  Consumer consumer(port);
  producer->source.Send(1, Key("first"), Floats(1, 1));
  ASSERT_TRUE(consumer.Fetch(1, Key("first"))->Wait().status.ok());
  auto waits = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer->source.waiting() == 1; }));
  producer.reset();
  producer = std::make_unique<Producer>(6, port);
  EXPECT_TRUE(absl::IsAborted(waits->Wait().status)) << waits->status;
  EXPECT_EQ(waits->status.message(),
            absl::StrCat(kProducer,
                         " has restarted: its incarnation was 0000000000000005 and is "
                         "0000000000000006"));
  producer->source.Send(2, Key("k"), Floats(1, 2));
  auto next = consumer.Fetch(2, Key("k"));
  ASSERT_TRUE(next->Wait().status.ok()) << next->status;
}

TEST(GrpcPath, AnIdleConsumerMeetsTheNewLifeWithoutAnError) {
  auto producer = std::make_unique<Producer>(5);
  const int port = producer->port();
  Consumer consumer(port);
  producer->source.Send(1, Key("first"), Floats(1, 1));
  ASSERT_TRUE(consumer.Fetch(1, Key("first"))->Wait().status.ok());
  producer.reset();
  producer = std::make_unique<Producer>(6);  // It listens on another port.
  consumer.MoveTo(producer->port());
  producer->source.Send(2, Key("k"), Floats(1, 2));
  auto next = consumer.Fetch(2, Key("k"));
  ASSERT_TRUE(next->Wait().status.ok()) << next->status;
}

// Loses all notes, holds the first fetch, and says at first that the second is of another life.
class ForgetfulProducer final : public rpc::TransportService::Service {
 public:
  ForgetfulProducer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ForgetfulProducer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status FetchTensor(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<rpc::FetchResponse, rpc::FetchRequest>* stream) override {
    rpc::FetchRequest request;
    if (!stream->Read(&request) || request.ends()) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
    }
    if (request.serial() == 1) {
      first_came.Notify();
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
      return grpc::Status(grpc::StatusCode::CANCELLED, "gone");
    }
    rpc::FetchResponse response;
    rpc::FetchHeader* const header = response.mutable_header();
    header->set_producer_incarnation(6);
    {
      MutexLock lock(&mu_);
      header->set_is_other_incarnation(requests_.empty());
      requests_.push_back(request);
    }
    const auto code =
        header->is_other_incarnation() ? absl::StatusCode::kAborted : absl::StatusCode::kNotFound;
    header->set_code(static_cast<int>(code));
    stream->Write(response);
    return grpc::Status::OK;
  }

  int port() const { return port_; }
  std::vector<rpc::FetchRequest> requests() {
    MutexLock lock(&mu_);
    return requests_;
  }

  absl::Notification first_came;

 private:
  int port_ = 0;
  Mutex mu_;
  std::vector<rpc::FetchRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

TEST(GrpcPath, WhatAnotherLifeWasToldIsToldAgain) {
  ForgetfulProducer producer;
  Consumer consumer(producer.port());
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  auto left = consumer.Fetch(1, Key("a"), args);
  producer.first_came.WaitForNotification();
  cancellation.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(left->Wait().status));
  EXPECT_TRUE(absl::IsNotFound(consumer.Fetch(1, Key("b"))->Wait().status));
  const std::vector<rpc::FetchRequest> requests = producer.requests();
  ASSERT_EQ(requests.size(), 2u);
  for (const rpc::FetchRequest& request : requests) {
    ASSERT_EQ(request.unwanted_size(), 1);
    EXPECT_EQ(request.unwanted(0), 1u);
  }
}

TEST(GrpcPath, ARestartedConsumersOldFetchesTakeNothing) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  auto old = std::make_unique<Consumer>(proxy.port(), 70);
  auto waits = old->Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 1; }));
  proxy.Refuse(true);  // The old consumer cannot say that it leaves.
  proxy.CutNow();
  old.reset();
  Consumer consumer(producer.port(), 71);
  auto next = consumer.Fetch(1, Key("k"));
  ASSERT_TRUE(Eventually([&] { return producer.source.cancels() == 1; }));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 1; }));
  producer.source.Send(1, Key("k"), Floats(1, 2));
  ASSERT_TRUE(next->Wait().status.ok()) << next->status;
}

TEST(GrpcPath, AnEarlyRequesterWaitsAndAnUnknownPeerIsNamed) {
  int port = 0;
  { port = Producer(4).port(); }
  Consumer consumer(port);
  auto early = consumer.Fetch(1, Key("k"));
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_FALSE(early->done.HasBeenNotified());
  Producer producer(5, port);
  producer.source.Send(1, Key("k"), Floats(1, 1));
  ASSERT_TRUE(early->Wait().status.ok()) << early->status;

  GrpcChannel nobody("/job:ps/replica:0/task:9", &consumer.members, &consumer.signer,
                     &consumer.events, &consumer.poller);
  absl::Notification done;
  absl::Status status;
  consumer.poller.RunAndWait([&] {
    nobody.Fetch(1, Key("k"), {}, [&](Received&& received) {
      status = received.status;
      done.Notify();
    });
    EXPECT_FALSE(done.HasBeenNotified());
  });
  done.WaitForNotification();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  consumer.poller.RunAndWait([&] { nobody.Close(absl::CancelledError("over")); });
}

TEST(GrpcPath, PatienceEnds) {
  GrpcChannelOptions options;
  options.patience = absl::Milliseconds(200);
  int port = 0;
  { port = Producer(4).port(); }
  Consumer consumer(port, 77, "", options);
  auto fetch = consumer.Fetch(1, Key("k"));
  EXPECT_TRUE(absl::IsUnavailable(fetch->Wait().status)) << fetch->status;
  EXPECT_NE(fetch->status.message().find(kProducer), std::string::npos);
}

TEST(GrpcPath, ADeadlineEndsAPauseBetweenTwoAttempts) {
  GrpcChannelOptions options;
  options.patience = absl::Minutes(2);
  options.first_retry = options.longest_retry = absl::Seconds(15);
  int port = 0;
  { port = Producer(4).port(); }
  Consumer consumer(port, 77, "", options);
  RecvArgs args;
  args.deadline = Deadline::After(consumer.clock, absl::Milliseconds(200));
  const absl::Time began = absl::Now();
  auto fetch = consumer.Fetch(1, Key("k"), args);
  EXPECT_TRUE(absl::IsDeadlineExceeded(fetch->Wait().status)) << fetch->status;
  EXPECT_LT(absl::Now() - began, absl::Seconds(10));
}

// Producers of an earlier release take no batches.
TEST(GrpcPath, MoreThanMaxAskedWaitInLineAtAProducerThatTakesNoBatches) {
  GrpcChannelOptions options;
  options.max_asked = 2;
  FetchServerOptions earlier;
  earlier.takes_batches = false;
  Producer producer(5, 0, "", earlier);
  Consumer consumer(producer.port(), 77, "", options);
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < 20; ++i) results.push_back(consumer.Fetch(1, Key(absl::StrCat("k", i))));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 2; }));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(producer.source.takes(), 2);
  for (int i = 0; i < 20; ++i) {
    producer.source.Send(1, Key(absl::StrCat("k", i)), Floats(1, static_cast<float>(i)));
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(results[static_cast<size_t>(i)]->Wait().status.ok());
    ExpectFloats(results[static_cast<size_t>(i)]->tensor, 1, static_cast<float>(i));
  }
}

TEST(GrpcPath, MoreThanMaxAskedWaitWithoutACall) {
  GrpcChannelOptions options;
  options.max_asked = 2;
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port(), 77, "", options);
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < 20; ++i) results.push_back(consumer.Fetch(1, Key(absl::StrCat("k", i))));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 20; }));
  EXPECT_EQ(producer.counts().parked, 18u);
  // Tensors are sent in reverse order, and the connection breaks meanwhile.
  for (int i = 19; i >= 0; --i) {
    if (i % 5 == 0) proxy.CutNow();
    producer.source.Send(1, Key(absl::StrCat("k", i)), Floats(1, static_cast<float>(i)));
    ASSERT_TRUE(results[static_cast<size_t>(i)]->Wait().status.ok());
    ExpectFloats(results[static_cast<size_t>(i)]->tensor, 1, static_cast<float>(i));
  }
  EXPECT_EQ(producer.source.takes(), 20);
  EXPECT_TRUE(Eventually([&] { return producer.counts().tensors == 20; }));
}

// The producer drops what was requested in batches when the consumer stays away.
TEST(GrpcPath, NobodyComesBackForWhatWasAskedForInBatches) {
  GrpcChannelOptions options;
  options.max_asked = 1;
  FetchServerOptions brief;
  brief.keep_for = absl::Milliseconds(100);
  Producer producer(5, 0, "", brief);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port(), 77, "", options);
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < 5; ++i) results.push_back(consumer.Fetch(1, Key(absl::StrCat("k", i))));
  ASSERT_TRUE(Eventually([&] { return producer.source.waiting() == 5; }));
  proxy.Refuse(true);
  proxy.CutNow();
  ASSERT_TRUE(Eventually([&] { return producer.source.cancels() == 5; }));
  EXPECT_EQ(producer.counts().dropped, 5u);
  EXPECT_EQ(producer.counts().parked, 0u);
  EXPECT_EQ(producer.counts().waiting, 0u);
  proxy.Refuse(false);
  for (auto& result : results) {
    EXPECT_TRUE(absl::IsAborted(result->Wait().status)) << result->status;
  }
}

TEST(GrpcPath, ABatchThatIsRefusedFailsWhatItAskedForAlone) {
  GrpcChannelOptions options;
  options.max_asked = 1;
  Producer producer(5);
  Consumer consumer(producer.port(), 77, "", options);
  auto waits = consumer.Fetch(1, Key("k"));
  // The key is addressed to another consumer, so its call fails alone.
  auto refused = consumer.Fetch(
      1, *TensorKey::Parse(absl::StrCat(kProducer, "/device:CPU:0;0000000000000001;",
                                        "/job:worker/replica:0/task:1/device:CPU:0;x;0:0")));
  auto other = consumer.Fetch(1, Key("other"));
  EXPECT_TRUE(absl::IsPermissionDenied(refused->Wait().status)) << refused->status;
  producer.source.Send(1, Key("other"), Floats(1, 3));
  ASSERT_TRUE(other->Wait().status.ok()) << other->status;
  producer.source.Send(1, Key("k"), Floats(1, 4));
  ASSERT_TRUE(waits->Wait().status.ok()) << waits->status;
}

Tensor Bytes(int64_t size) {
  Tensor tensor = *Tensor::Allocate(DType::kUint8, TensorShape({size}));
  memset(tensor.mutable_data(), 0xd5, tensor.bytes());
  return tensor;
}

// Many fetches in one turn of the poller, of "k0", "k1" and so on, where `size` is known.
std::vector<std::shared_ptr<Result>> FetchMany(Consumer* consumer, int count, int64_t size) {
  std::vector<std::shared_ptr<Result>> results;
  consumer->poller.RunAndWait([&] {
    for (int i = 0; i < count; ++i) {
      auto result = std::make_shared<Result>();
      results.push_back(result);
      RecvArgs args;
      args.destination = *Tensor::Allocate(DType::kUint8, TensorShape({size}));
      consumer->channel->Fetch(1, Key(absl::StrCat("k", i)), args, [result](Received&& received) {
        result->status = std::move(received.status);
        result->tensor = std::move(received.tensor);
        result->done.Notify();
      });
    }
  });
  return results;
}

// The consumer knows what the producer can when it has had a tensor of it.
void MeetEachOther(Producer* producer, Consumer* consumer) {
  producer->source.Send(1, Key("first"), Floats(1, 1));
  ASSERT_TRUE(consumer->Fetch(1, Key("first"))->Wait().status.ok());
}

TEST(GrpcPath, SmallTensorsShareACall) {
  Producer producer(5);
  Consumer consumer(producer.port());
  MeetEachOther(&producer, &consumer);
  for (int64_t size : {4096, 4097}) {
    const uint64_t before = producer.counts().parcels;
    for (int i = 0; i < 40; ++i) producer.source.Send(1, Key(absl::StrCat("k", i)), Bytes(size));
    for (const auto& result : FetchMany(&consumer, 40, size)) {
      ASSERT_TRUE(result->Wait().status.ok()) << result->status;
      EXPECT_EQ(memcmp(result->tensor.data(), Bytes(size).data(), result->tensor.bytes()), 0);
    }
    // All but two, which had set out when others came.
    EXPECT_EQ(producer.counts().parcels - before, size > 4096 ? 0u : 38u);
  }
  EXPECT_EQ(producer.counts().repetitions, 0u);
  EXPECT_TRUE(Eventually([&] { return producer.counts().tensors == 81; }));
  EXPECT_EQ(producer.counts().kept_bytes, 0u);
}

// A batch whose keys are large after all, as the last ones were not.
TEST(GrpcPath, WhatIsNoParcelIsFetchedByACall) {
  Producer producer(5);
  Consumer consumer(producer.port());
  for (int i = 0; i < 16; ++i) {
    producer.source.Send(1, Key("small"), Floats(1, 1));
    ASSERT_TRUE(consumer.Fetch(1, Key("small"))->Wait().status.ok());
  }
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < 10; ++i) results.push_back(consumer.Fetch(1, Key(absl::StrCat("k", i))));
  ASSERT_TRUE(Eventually([&] { return producer.counts().parked == 8; }));
  for (int i = 0; i < 10; ++i) {
    producer.source.Send(1, Key(absl::StrCat("k", i)), Floats(100'000, static_cast<float>(i)));
  }
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(results[static_cast<size_t>(i)]->Wait().status.ok());
    ExpectFloats(results[static_cast<size_t>(i)]->tensor, 100'000, static_cast<float>(i));
  }
  EXPECT_EQ(producer.counts().parcels, 0u);
}

TEST(GrpcPath, AParcelsFailureIsItsOwn) {
  Producer producer(5);
  Consumer consumer(producer.port());
  MeetEachOther(&producer, &consumer);
  auto results = FetchMany(&consumer, 10, 64);
  ASSERT_TRUE(Eventually([&] { return producer.counts().parked == 8; }));
  producer.source.Fail(1, Key("k7"), absl::DataLossError("spilt"));
  EXPECT_EQ(results[7]->Wait().status.code(), absl::StatusCode::kDataLoss) << results[7]->status;
  producer.source.Send(1, Key("k8"), Bytes(65));  // Does not fit.
  EXPECT_TRUE(absl::IsInvalidArgument(results[8]->Wait().status)) << results[8]->status;
  auto again = consumer.Fetch(1, Key("k8"));  // It stayed the producer's.
  ASSERT_TRUE(again->Wait().status.ok()) << again->status;
  for (int i : {0, 1, 2, 3, 4, 5, 6, 9}) {
    producer.source.Send(1, Key(absl::StrCat("k", i)), Bytes(64));
    EXPECT_TRUE(results[static_cast<size_t>(i)]->Wait().status.ok());
  }
}

TEST(GrpcPath, AParcelWithAChangedBitIsFetchedByACall) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  GrpcChannelOptions options;
  options.digests = true;
  Consumer consumer(proxy.port(), 77, "", options);
  MeetEachOther(&producer, &consumer);
  auto results = FetchMany(&consumer, 10, 4096);
  ASSERT_TRUE(Eventually([&] { return producer.counts().parked == 8; }));
  proxy.DamageRuns(1);
  for (int i = 9; i >= 0; --i) producer.source.Send(1, Key(absl::StrCat("k", i)), Bytes(4096));
  for (const auto& result : results) {
    ASSERT_TRUE(result->Wait().status.ok()) << result->status;
    EXPECT_EQ(memcmp(result->tensor.data(), Bytes(4096).data(), 4096), 0);
  }
  EXPECT_EQ(proxy.damaged(), 1);
  EXPECT_EQ(producer.source.takes(), 11);
}

TEST(GrpcPath, ParcelsThatAreLostComeAgain) {
  Producer producer(5);
  CutProxy proxy(producer.port());
  Consumer consumer(proxy.port());
  MeetEachOther(&producer, &consumer);
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    auto results = FetchMany(&consumer, 30, 64);
    for (int i = 0; i < 30; ++i) {
      if (i == round) proxy.CutNow();
      producer.source.Send(1, Key(absl::StrCat("k", i)), Bytes(64));
    }
    for (const auto& result : results) ASSERT_TRUE(result->Wait().status.ok()) << result->status;
  }
  EXPECT_GT(producer.counts().parcels, 0u);
  EXPECT_EQ(producer.source.takes(), 1 + kRounds * 30);
  EXPECT_TRUE(Eventually([&] { return producer.counts().tensors == 1 + kRounds * 30; }));
}

// The numbers of a life's answers begin anew. An early one that is lost has to be told again.
TEST(GrpcPath, WhatAnEarlierLifeAnsweredWasNotHeardOfTheNext) {
  auto producer = std::make_unique<Producer>(5);
  const int port = producer->port();
  CutProxy proxy(port);
  Consumer consumer(proxy.port());
  MeetEachOther(producer.get(), &consumer);
  const auto fetch = [&](int count, int cut_at) {
    auto results = FetchMany(&consumer, count, 64);
    for (int i = 0; i < count; ++i) {
      if (i == cut_at) proxy.CutNow();
      producer->source.Send(1, Key(absl::StrCat("k", i)), Bytes(64));
    }
    for (const auto& result : results) ASSERT_TRUE(result->Wait().status.ok()) << result->status;
  };
  // The first request of a batch names no life.
  const auto said = [&] { return producer->heard(); };
  for (int round = 0; round < 50 && (said().empty() || said().back() < 20); ++round) {
    auto results = FetchMany(&consumer, 10, 64);
    ASSERT_TRUE(Eventually([&] { return producer->counts().parked == 8; }));
    for (int i = 0; i < 10; ++i) producer->source.Send(1, Key(absl::StrCat("k", i)), Bytes(64));
    for (const auto& result : results) ASSERT_TRUE(result->Wait().status.ok()) << result->status;
  }
  ASSERT_GE(said().back(), 20u);
  producer.reset();
  producer = std::make_unique<Producer>(6, port);
  MeetEachOther(producer.get(), &consumer);
  fetch(10, -1);  // A call that is cut now might have been the earlier life's.
  for (int round = 0; round < 10; ++round) fetch(10, round);
  ASSERT_FALSE(said().empty());
  EXPECT_EQ(said().front(), 0u);
}

TEST(GrpcPath, AFullExecutorDelaysDoneAndLosesNone) {
  Producer producer(5);
  Consumer consumer(producer.port());
  ThreadPoolExecutor executor(1, 1);
  absl::Notification go;
  executor.Run([&] { go.WaitForNotification(); });
  executor.Run([] {});
  RecvArgs args;
  args.executor = &executor;
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < 5; ++i) {
    producer.source.Send(1, Key("k"), Floats(1, 1));
    results.push_back(consumer.Fetch(1, Key("k"), args));
  }
  ASSERT_TRUE(Eventually([&] { return producer.counts().tensors == 5; }));
  for (auto& result : results) EXPECT_FALSE(result->done.HasBeenNotified());
  go.Notify();
  for (auto& result : results) EXPECT_TRUE(result->Wait().status.ok());
}

TEST(GrpcPath, ClosingEndsEverything) {
  Producer producer(5);
  Consumer consumer(producer.port());
  auto waits = consumer.Fetch(1, Key("k"));
  consumer.poller.RunAndWait([&] { consumer.channel->Close(absl::UnavailableError("bye")); });
  EXPECT_EQ(waits->Wait().status, absl::UnavailableError("bye"));
  EXPECT_EQ(consumer.Fetch(1, Key("k"))->Wait().status, absl::UnavailableError("bye"));
  EXPECT_TRUE(Eventually([&] { return producer.source.waiting() == 0; }));
}

// ---- Calls that must be refused ----

class RawCaller {
 public:
  explicit RawCaller(int port)
      : stub(rpc::TransportService::NewStub(grpc::CreateChannel(
            absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()))) {}
  // Sends one request. Returns the status of the stream, or the code in the reply's header.
  grpc::Status Fetch(const std::string& statement, const rpc::FetchRequest& request) {
    grpc::ClientContext context;
    if (!statement.empty()) context.AddMetadata(kCallerMetadata, statement);
    auto stream = stub->FetchTensor(&context);
    stream->Write(request);
    rpc::FetchResponse response;
    stream->WritesDone();
    if (stream->Read(&response)) {
      while (stream->Read(&response)) {
      }
      stream->Finish();
      return grpc::Status(static_cast<grpc::StatusCode>(response.header().code()),
                          response.header().message());
    }
    return stream->Finish();
  }
  std::unique_ptr<rpc::TransportService::Stub> stub;
};

rpc::FetchRequest Request(const std::string& edge, uint64_t serial) {
  rpc::FetchRequest request;
  request.set_step_id(1);
  request.set_key(std::string(Key(edge).text()));
  request.set_serial(serial);
  request.set_channel(1);
  return request;
}

constexpr char kFetch[] = "/tryst.rpc.TransportService/FetchTensor";
constexpr char kToken[] = "0123456789abcdef";

// A call for each would take the poller longer than there is between two of them.
TEST(GrpcPath, DeadlinesThatPassOneByOneShareANote) {
  constexpr int kReceives = 200;
  Producer producer(5);
  GrpcChannelOptions options;
  options.max_asked = 8;
  Consumer consumer(producer.port(), 77, "", options);
  const int64_t begin_ns = consumer.clock.NowNs() + 3'000'000'000;
  std::vector<std::shared_ptr<Result>> results;
  for (int i = 0; i < kReceives; ++i) {
    RecvArgs args;
    args.deadline = Deadline::AtNs(begin_ns + int64_t{1'000'000} * i);
    results.push_back(consumer.Fetch(1, Key(absl::StrCat("never", i)), args));
  }
  EXPECT_TRUE(Eventually([&] { return producer.source.waiting() == kReceives; }));
  producer.HoldNotes();
  for (const auto& result : results) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(result->Wait().status)) << result->status;
  }
  producer.LetNotesGo();
  EXPECT_TRUE(Eventually([&] { return producer.source.waiting() == 0; }));
  EXPECT_EQ(producer.counts().given_back, 0u);
  EXPECT_LT(producer.notes(), 10);
}

TEST(GrpcPathRefuses, CallersWithoutOrWithAWrongStatement) {
  Producer producer(5, 0, kToken);
  producer.source.Send(1, Key("k"), Floats(1, 1));
  RawCaller raw(producer.port());
  const rpc::FetchRequest request = Request("k", 1);
  const std::string body = request.SerializeAsString();
  EXPECT_EQ(raw.Fetch("", request).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(raw.Fetch("garbage", request).error_code(), grpc::StatusCode::UNAUTHENTICATED);

  CallSigner none({"lab", kConsumer, 9}, "", UnixMs);
  EXPECT_EQ(raw.Fetch(none.Sign(kProducer, kFetch, body), request).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  CallSigner wrong({"lab", kConsumer, 9}, "fedcba9876543210", UnixMs);
  EXPECT_EQ(raw.Fetch(wrong.Sign(kProducer, kFetch, body), request).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  CallSigner old({"lab", kConsumer, 9}, kToken, [] { return UnixMs() - 61000; });
  EXPECT_EQ(raw.Fetch(old.Sign(kProducer, kFetch, body), request).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  CallSigner other({"factory", kConsumer, 9}, kToken, UnixMs);
  EXPECT_EQ(raw.Fetch(other.Sign(kProducer, kFetch, body), request).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);

  CallSigner right({"lab", kConsumer, 9}, kToken, UnixMs);
  // The signature is valid, but for another method or another request.
  EXPECT_EQ(raw.Fetch(right.Sign(kProducer, "/tryst.rpc.TransportService/Hello", body), request)
                .error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(raw.Fetch(right.Sign(kProducer, kFetch, "x"), request).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(producer.source.takes(), 0);
  const std::string statement = right.Sign(kProducer, kFetch, body);
  EXPECT_TRUE(raw.Fetch(statement, request).ok());
  EXPECT_EQ(producer.source.takes(), 1);
  // The very same call again: a replay.
  EXPECT_EQ(raw.Fetch(statement, request).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(producer.source.takes(), 1);
}

// This executor has no room, and counts the work that is brought to it.
class FullExecutor final : public Executor {
 public:
  bool TryRun(Work*) override {
    ++brought;
    return false;
  }
  void Run(Work) override { ++brought; }

  std::atomic<int> brought{0};
};

TEST(GrpcPathRefuses, AStrangerBeforeItTakesAPlace) {
  FullExecutor executor;
  Producer producer(5, 0, kToken, {}, &executor);
  RawCaller raw(producer.port());
  const auto clean_up = [&raw](const std::string& token) {
    CallSigner signer({"lab", kConsumer, 9}, token, UnixMs);
    rpc::CleanupStepRequest request;
    request.set_step_id(1);
    grpc::ClientContext context;
    context.AddMetadata(kCallerMetadata,
                        signer.Sign(kProducer, "/tryst.rpc.TransportService/CleanupStep",
                                    request.SerializeAsString()));
    rpc::StepResponse response;
    return raw.stub->CleanupStep(&context, request, &response).error_code();
  };
  EXPECT_EQ(clean_up("fedcba9876543210"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(executor.brought, 0);
  EXPECT_EQ(clean_up(kToken), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(executor.brought, 1);
}

TEST(GrpcPathRefuses, RequestsThatAreNone) {
  Producer producer(5);
  RawCaller raw(producer.port());
  CallSigner signer({"lab", kConsumer, 9}, "", UnixMs);
  const auto fetch = [&](const rpc::FetchRequest& request) {
    return raw.Fetch(signer.Sign(kProducer, kFetch, request.SerializeAsString()), request)
        .error_code();
  };
  rpc::FetchRequest request = Request("k", 1);
  request.set_key("no key");
  EXPECT_EQ(fetch(request), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fetch(Request("k", 0)), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_key(std::string(5 << 20, 'x'));  // The request exceeds gRPC's message limit.
  EXPECT_EQ(fetch(request), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // The caller asks for another worker's tensor.
  CallSigner thief({"lab", "/job:worker/replica:0/task:1", 9}, "", UnixMs);
  request = Request("k", 1);
  EXPECT_EQ(
      raw.Fetch(thief.Sign(kProducer, kFetch, request.SerializeAsString()), request).error_code(),
      grpc::StatusCode::PERMISSION_DENIED);
  // The caller asks for the rest of a tensor that was never begun.
  producer.source.Send(1, Key("k"), Floats(1, 1));
  request.set_offset(1000);
  EXPECT_EQ(fetch(request), grpc::StatusCode::ABORTED);
  EXPECT_EQ(producer.source.takes(), 0);
  // gRPC refused the oversized request, so it was not counted.
  EXPECT_EQ(producer.counts().refused, 3u);
}

TEST(GrpcPathRefuses, ABatchOfMoreThanOneMayHold) {
  Producer producer(5);
  RawCaller raw(producer.port());
  CallSigner signer({"lab", kConsumer, 9}, "", UnixMs);
  rpc::FetchRequest request;
  request.set_waits(true);
  request.set_channel(1);
  for (int i = 0; i < 8193; ++i) request.add_asks();
  const auto fetch = [&] {
    return raw.Fetch(signer.Sign(kProducer, kFetch, request.SerializeAsString()), request)
        .error_code();
  };
  EXPECT_EQ(fetch(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_asks()->RemoveLast();
  EXPECT_EQ(fetch(), grpc::StatusCode::OK);
}

TEST(GrpcPathRefuses, MoreConsumersThanItMayHave) {
  FetchServerOptions options;
  options.max_consumers = 2;
  options.keep_for = absl::Seconds(2);
  Producer producer(5, 0, "", options);
  RawCaller raw(producer.port());
  uint64_t serial = 0;
  const auto fetch = [&](int task, uint64_t incarnation, uint64_t again = 0) {
    const std::string worker = absl::StrCat("/job:worker/replica:0/task:", task);
    const TensorKey key = *TensorKey::Parse(
        absl::StrCat(kProducer, "/device:CPU:0;0000000000000001;", worker, "/device:CPU:0;k;0:0"));
    rpc::FetchRequest request = Request("k", ++serial);
    request.set_key(std::string(key.text()));
    if (again != 0) request.set_serial(again);
    producer.source.Send(1, key, Floats(1, 1));
    CallSigner signer({"lab", worker, incarnation}, "", UnixMs);
    return raw.Fetch(signer.Sign(kProducer, kFetch, request.SerializeAsString()), request)
        .error_code();
  };
  EXPECT_EQ(fetch(0, 9), grpc::StatusCode::OK);
  EXPECT_EQ(fetch(1, 9), grpc::StatusCode::OK);
  EXPECT_EQ(fetch(2, 9), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(fetch(0, 9), grpc::StatusCode::OK);
  EXPECT_EQ(fetch(1, 10), grpc::StatusCode::OK) << "a restarted one takes its own place";
  EXPECT_EQ(fetch(3, 9), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Once they hold nothing and say nothing, others may take their places.
  ASSERT_TRUE(Eventually([&] { return producer.counts().consumers == 0; }));
  EXPECT_EQ(fetch(2, 9), grpc::StatusCode::OK);
  // Consumers may come back under the incarnation by which they were known.
  EXPECT_EQ(fetch(1, 9), grpc::StatusCode::ABORTED) << "another life of it has been here since";
  EXPECT_EQ(fetch(1, 10, 5), grpc::StatusCode::ABORTED) << "it had that tensor";
  EXPECT_EQ(fetch(0, 9), grpc::StatusCode::RESOURCE_EXHAUSTED) << "there are two again";
}

// So that a lost answer is never taken for one that it has heard.
TEST(GrpcPath, AConsumerThatWasForgottenIsAnsweredUnderANewNumber) {
  Producer producer(5);
  RawCaller raw(producer.port());
  CallSigner signer({"lab", kConsumer, 9}, "", UnixMs);
  producer.source.Send(1, Key("k"), Floats(1, 1));
  rpc::FetchRequest request;
  request.set_waits(true);
  request.set_channel(1);
  request.set_producer_incarnation(5);
  request.set_heard(7);
  rpc::FetchAsk* ask = request.add_asks();
  ask->set_serial(12);
  ask->set_step_id(1);
  ask->set_key(std::string(Key("k").text()));
  grpc::ClientContext context;
  context.AddMetadata(kCallerMetadata, signer.Sign(kProducer, kFetch, request.SerializeAsString()));
  auto stream = raw.stub->FetchTensor(&context);
  ASSERT_TRUE(stream->Write(request) && stream->WritesDone());
  rpc::FetchResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_EQ(response.header().ready_size(), 1);
  EXPECT_EQ(response.header().number(), 8u);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(GrpcPathRefuses, ARepetitionOfWhatIsOver) {
  Producer producer(5);
  RawCaller raw(producer.port());
  CallSigner signer({"lab", kConsumer, 9}, "", UnixMs);
  producer.source.Send(1, Key("k"), Floats(1, 1));
  producer.source.Send(1, Key("k"), Floats(1, 2));
  const rpc::FetchRequest request = Request("k", 1);
  const std::string statement = signer.Sign(kProducer, kFetch, request.SerializeAsString());
  EXPECT_TRUE(raw.Fetch(statement, request).ok());
  // It returns the same tensor again, because no landing was reported.
  EXPECT_TRUE(raw.Fetch(statement, request).ok());
  rpc::FetchRequest note;
  note.set_ends(true);
  note.set_channel(1);
  note.set_serial(2);
  note.set_oldest_serial(2);
  EXPECT_TRUE(raw.Fetch(signer.Sign(kProducer, kFetch, note.SerializeAsString()), note).ok());
  EXPECT_EQ(producer.counts().tensors, 1u);
  EXPECT_EQ(raw.Fetch(statement, request).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(producer.source.takes(), 1);  // The second tensor is still there.
}

// Ends every other fetch of a consumer, from `first` on; the others wait, or were never asked for.
class EveryOther {
 public:
  explicit EveryOther(int port) : raw_(port) {}
  // Asks for those between.
  grpc::StatusCode Ask(uint64_t first, int count) {
    rpc::FetchRequest request = Of(first);
    request.set_waits(true);
    request.clear_serial();
    for (int i = 0; i < count; ++i) {
      rpc::FetchAsk* ask = request.add_asks();
      ask->set_serial(first + 2 * static_cast<uint64_t>(i) + 1);
      ask->set_step_id(1);
      ask->set_key(std::string(key_.text()));
    }
    return Send(request);
  }
  grpc::StatusCode End(uint64_t first, int count) {
    rpc::FetchRequest note = Of(first);
    note.set_ends(true);
    for (int i = 0; i < count; ++i) note.add_over(first + 2 * static_cast<uint64_t>(i));
    return Send(note);
  }

 private:
  static rpc::FetchRequest Of(uint64_t serial) {
    rpc::FetchRequest request;
    request.set_channel(1);
    request.set_oldest_serial(1);
    request.set_serial(serial);
    return request;
  }
  grpc::StatusCode Send(const rpc::FetchRequest& request) {
    const std::string text = request.SerializeAsString();
    return raw_.Fetch(signer_.Sign(kProducer, kFetch, text), request).error_code();
  }

  const TensorKey key_ = Key("k");
  RawCaller raw_;
  CallSigner signer_{{"lab", kConsumer, 9}, "", UnixMs};
};

// Two steps had their receives in turn, and one step is aborted.
TEST(GrpcPath, WhatEndsBetweenRequestsThatWaitIsRemembered) {
  constexpr int kAtOnce = 8000;
  constexpr uint64_t kStretch = 2 * kAtOnce;
  Producer producer(5);
  EveryOther consumer(producer.port());
  for (uint64_t i = 0; i < 18; ++i) {
    ASSERT_EQ(consumer.Ask(2 + i * kStretch, kAtOnce), grpc::StatusCode::OK);
    ASSERT_EQ(consumer.End(2 + i * kStretch, kAtOnce), grpc::StatusCode::OK) << i;
  }
  EXPECT_EQ(producer.counts().waiting, 18u * kAtOnce);
}

TEST(GrpcPathRefuses, WhatEndsOutOfOrderWithoutEnd) {
  constexpr int kAtOnce = 65536;
  Producer producer(5);
  EveryOther consumer(producer.port());
  EXPECT_EQ(consumer.End(2, kAtOnce), grpc::StatusCode::OK);
  EXPECT_EQ(consumer.End(2 + 2 * kAtOnce, kAtOnce), grpc::StatusCode::OK);
  EXPECT_EQ(consumer.End(2 + 4 * kAtOnce, 1), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

absl::StatusOr<Hello> Exchange(Bootstrap* bootstrap, const Hello& hello) {
  absl::StatusOr<Hello> answer = absl::InternalError("hung");
  absl::Notification done;
  bootstrap->Exchange(kProducer, hello, Deadline::Never(), [&](absl::StatusOr<Hello> a) {
    answer = std::move(a);
    done.Notify();
  });
  done.WaitForNotificationWithTimeout(absl::Seconds(20));
  return answer;
}

TEST(GrpcBootstrapTest, ExchangesHellosAndRefusesWhatDoesNotFit) {
  Producer producer(5, 0, kToken);
  Consumer consumer(producer.port(), 77, kToken);
  GrpcBootstrap bootstrap(&consumer.members, &consumer.signer, consumer.events.queue(),
                          &consumer.clock);
  Hello hello;
  hello.worker = kConsumer;
  hello.incarnation = 77;
  hello.epoch = 3;
  hello.path = "rdma/soft";
  hello.queue_pairs = {std::string("\0\1", 2), "two"};
  hello.parameters = "p";
  auto answer = Exchange(&bootstrap, hello);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->worker, kProducer);
  EXPECT_EQ(answer->epoch, 3u);
  EXPECT_EQ(answer->queue_pairs, hello.queue_pairs);
  EXPECT_EQ(answer->parameters, "answer to p");

  Hello newer = hello;
  newer.protocol_oldest = newer.protocol_newest = kProtocolNewest + 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Exchange(&bootstrap, newer).status()));
  Hello downgraded = hello;
  downgraded.protocol_newest = 0;
  downgraded.protocol_oldest = 0;
  EXPECT_TRUE(absl::IsFailedPrecondition(Exchange(&bootstrap, downgraded).status()));
  Hello masked = hello;
  masked.worker = "/job:worker/replica:0/task:1";
  EXPECT_TRUE(absl::IsPermissionDenied(Exchange(&bootstrap, masked).status()));
  Hello huge = hello;
  huge.parameters.assign(100 << 10, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(Exchange(&bootstrap, huge).status()));

  CallSigner wrong({"lab", kConsumer, 77}, "fedcba9876543210", UnixMs);
  GrpcBootstrap outsider(&consumer.members, &wrong, consumer.events.queue(), &consumer.clock);
  EXPECT_TRUE(absl::IsUnauthenticated(Exchange(&outsider, hello).status()));
}

TEST(GrpcBootstrapTest, AnImpostorAnswersInVain) {
  Producer impostor(5);  // It accepts every caller and does not know the token.
  Consumer consumer(impostor.port(), 77, kToken);
  GrpcBootstrap bootstrap(&consumer.members, &consumer.signer, consumer.events.queue(),
                          &consumer.clock);
  Hello hello;
  hello.worker = kConsumer;
  hello.incarnation = 77;
  EXPECT_TRUE(absl::IsUnauthenticated(Exchange(&bootstrap, hello).status()));
}

TEST(GrpcBootstrapTest, NobodyThereIsUnavailable) {
  int port = 0;
  { port = Producer(4).port(); }
  Consumer consumer(port);
  GrpcBootstrap bootstrap(&consumer.members, &consumer.signer, consumer.events.queue(),
                          &consumer.clock);
  EXPECT_TRUE(absl::IsUnavailable(Exchange(&bootstrap, Hello()).status()));
}

// A virtual machine that goes on after it was suspended, or a clock that somebody sets.
TEST(GrpcPath, AClockThatJumpsCostsNoFetch) {
  Producer producer(5, 0, kToken);
  Consumer consumer(producer.port(), 77, kToken);
  GrpcBootstrap bootstrap(&consumer.members, &consumer.signer, consumer.events.queue(),
                          &consumer.clock);
  Hello hello;
  hello.worker = kConsumer;
  hello.incarnation = 77;
  int fetched = 0;
  for (const int64_t ahead_ms : {0, 3'600'000, -3'600'000, 61'000}) {
    consumer.clock_ahead_ms = ahead_ms;
    // A call for itself, then more than may have one, so that the others share a batch.
    std::vector<std::shared_ptr<Result>> results;
    for (int i = 0; i < (ahead_ms == 61'000 ? 100 : 1); ++i) {
      const TensorKey key = Key(absl::StrCat("k", fetched++));
      results.push_back(consumer.Fetch(1, key));
      producer.source.Send(1, key, Floats(3, 1));
    }
    for (const auto& result : results) {
      EXPECT_TRUE(result->Wait().status.ok()) << ahead_ms << ": " << result->status;
    }
  }
  // A hello is said again by who connects.
  consumer.clock_ahead_ms = -7'200'000;
  EXPECT_TRUE(absl::IsUnavailable(Exchange(&bootstrap, hello).status()));
  EXPECT_TRUE(Exchange(&bootstrap, hello).ok());
}

}  // namespace
}  // namespace tryst
