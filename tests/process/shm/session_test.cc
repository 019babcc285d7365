// Either side ends a shared-memory link on purpose, at every point of its life. Both processes live
// on, and so does the session, so each tensor must arrive once and in order. This thread turns both
// ends, on virtual time.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crew.h"
#include "base/guards_reached.h"
#include "base/log.h"
#include "channel/ops/limits.h"
#include "channel/shm/shm_transport.h"
#include "channel/trace/trace.h"
#include "gtest/gtest.h"
#include "rendezvous/local_rendezvous.h"
#include "rendezvous/virtual_alarms.h"
#include "tests/process/history/kept_traces.h"
#include "tests/process/pair/one_step.h"
#include "tests/process/pair/path_listener.h"
#include "tests/process/shm/link_fault.h"

namespace tryst {
namespace {

// What the transport says of all consumers that it serves.
std::string Serving(const ShmTransport& transport) {
  std::string out;
  transport.ExplainServing("", &out);
  return out;
}

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";
constexpr uint64_t kFirstLife = 1;

// Answers a hello one turn of the poller later.
class Hellos final : public Bootstrap {
 public:
  void Exchange(const std::string&, const Hello& hello, Deadline, HelloDone done) override {
    waiting_.emplace_back(hello, std::move(done));
  }
  void Deliver(ShmTransport* producer) {
    for (auto& [hello, done] : std::exchange(waiting_, {})) {
      if (producer == nullptr) {
        std::move(done)(absl::UnavailableError("not up"));
      } else if (hello.path == "none") {
        std::move(done)(absl::UnimplementedError("no path none"));
      } else if (refuses && shm_wire::DecodeOffer(hello.parameters)->farewell.empty()) {
        std::move(done)(absl::UnimplementedError("not the same host"));
      } else if (full && shm_wire::DecodeOffer(hello.parameters)->farewell.empty()) {
        std::move(done)(absl::ResourceExhaustedError("too many consumers"));
      } else {
        last = hello;
        producer->OnHello(hello, std::move(done));
      }
    }
  }
  Hello last;
  bool full = false;     // The producer answers that it has no room,
  bool refuses = false;  // or that it does not have this path.

 private:
  std::vector<std::pair<Hello, HelloDone>> waiting_;
};

struct End {
  End(VirtualAlarms* alarms, Hellos* hellos, const std::string& self, uint64_t incarnation,
      const ShmOptions& options, const Clock* clock = nullptr)
      : source(alarms),
        self(self),
        incarnation(incarnation),
        trace(EveryOperation()),
        poller(clock != nullptr ? clock : alarms) {
    ArenaOptions memory;
    memory.cap_bytes = 16 << 20;
    memory.seed = incarnation << 20;
    arena = Arena::Make(memory);
    TransportContext context;
    context.poller = &poller;
    context.bootstrap = hellos;
    context.source = &source;
    context.self = self;
    context.incarnation = incarnation;
    context.trace = &trace;
    path = std::make_unique<ShmTransport>(context, arena, options);
    const absl::Status opened = path->Open();
    TRYST_CHECK(opened.ok()) << opened;
  }
  TraceDump Dump() const { return DumpOf(trace, self, incarnation, poller.clock().NowNs()); }

  OneStep source;
  const std::string self;
  const uint64_t incarnation;
  Trace trace;
  std::shared_ptr<Arena> arena;
  Poller poller;
  std::unique_ptr<ShmTransport> path;
};

// How a fetch ended.
struct Fetched {
  bool ended = false;
  absl::Status status;
  int number = -1;
};

class SessionTest : public ::testing::Test {
 protected:
  void Open(const ShmOptions& options, KindChooser* user = nullptr) {
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    options_ = options;
    producer_ = std::make_unique<End>(&alarms_, &hellos_, kProducer, kFirstLife, options_);
    consumer_ = std::make_unique<End>(&alarms_, &hellos_, kConsumer, 7, options);
    channel_ = consumer_->path->MakeFetchSession(kProducer, user, user != nullptr);
  }
  void Close() {
    channel_->Close(absl::CancelledError("over"));
    consumer_->path->Close(absl::CancelledError("over"));
    StopProducer();
    for (int i = 0; i < 100 && !channel_->Drained(); ++i) Turn();
    ASSERT_TRUE(channel_->Drained()) << channel_->Explain();
    channel_.reset();
    dumps_.push_back(consumer_->Dump());
    consumer_.reset();
    EXPECT_EQ(JudgeTraces(dumps_).breaches, "");
    dumps_.clear();
  }
  void StopProducer() {
    if (producer_ == nullptr) return;
    producer_->path->Close(absl::CancelledError("over"));
    producer_->source.step()->StartAbort(absl::CancelledError("over"));
    for (int i = 0; i < 1000 && !producer_->path->Drained(); ++i) producer_->poller.Turn();
    ASSERT_TRUE(producer_->path->Drained()) << Serving(*producer_->path);
    dumps_.push_back(producer_->Dump());
    producer_.reset();
  }
  void TearDown() override {
    if (channel_ != nullptr) Close();
    SetLogSink(nullptr);
  }

  void Turn() {
    hellos_.Deliver(producer_ == nullptr ? nullptr : producer_->path.get());
    consumer_->poller.Turn();
    if (producer_ != nullptr) producer_->poller.Turn();
    alarms_.AdvanceBy(absl::Microseconds(110));
  }

  static TensorKey Key(const std::string& edge, uint64_t incarnation = kFirstLife) {
    return TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), incarnation,
                                 absl::StrCat(kConsumer, "/device:CPU:0"), edge)
        ->At(0, 0);
  }
  // Every byte is `number`.
  void Send(const TensorKey& key, int64_t bytes, int number, bool in_arena) {
    Tensor tensor = in_arena ? *producer_->arena->AllocateTensor(DType::kUint8, {bytes})
                             : *Tensor::Allocate(DType::kUint8, {bytes});
    memset(tensor.mutable_data(), number, tensor.bytes());
    ASSERT_TRUE(producer_->source.step()->Send(key, SendArgs(), std::move(tensor), false).ok());
  }
  static int NumberOf(const Tensor& tensor) {
    const uint8_t* at = tensor.data_as<uint8_t>();
    const bool whole = memcmp(at, at + 1, tensor.bytes() - 1) == 0;
    return whole ? at[0] : -2;
  }
  void Fetch(const TensorKey& key, int64_t destination_bytes, Fetched* fetched) {
    RecvArgs args;
    if (destination_bytes > 0) {
      args.destination = *Tensor::Allocate(DType::kUint8, {destination_bytes});
    }
    FetchWith(key, args, fetched);
  }
  void FetchWith(const TensorKey& key, const RecvArgs& args, Fetched* fetched) {
    channel_->Fetch(1, key, args, [fetched](Received&& received) {
      EXPECT_FALSE(fetched->ended) << "a callback ran twice";
      fetched->ended = true;
      if (received.status.ok()) fetched->number = NumberOf(received.tensor);
      fetched->status = std::move(received.status);
    });
  }
  // What can still be received from the producer, in order.
  std::vector<int> Left(const TensorKey& key) {
    std::vector<int> left;
    for (;;) {
      bool met = false;
      Cancellation cancellation;
      RecvArgs args;
      args.cancellation = &cancellation;
      producer_->source.step()->RecvAsync(key, args, [&](Received&& received) {
        if (!received.status.ok()) return;
        met = true;
        left.push_back(NumberOf(received.tensor));
      });
      if (met) continue;
      cancellation.StartCancel();
      return left;
    }
  }

  VirtualAlarms alarms_;
  Hellos hellos_;
  ShmOptions options_;
  std::unique_ptr<End> producer_;
  std::unique_ptr<End> consumer_;
  std::unique_ptr<FetchSession> channel_;
  std::vector<TraceDump> dumps_;  // What lives that are over have traced.
};

// A key may get a number that another key had before. What was checked for that key must not hold
// for it.
TEST_F(SessionTest, AKeyInheritsNothingFromTheOneThatHadItsNumber) {
  Open(ShmOptions());
  const TensorKey foreign =
      TensorKeyPrefix::Make(absl::StrCat(kProducer, "/device:CPU:0"), kFirstLife,
                            "/job:other/replica:0/task:0/device:CPU:0", "edge")
          ->At(0, 0);
  Send(foreign, 8, 1, false);
  constexpr uint32_t kAtOnce = 64;
  const auto fetch = [this](const TensorKey& key, Fetched* fetched) {
    *fetched = Fetched();
    Fetch(key, 0, fetched);
  };
  std::vector<Fetched> fetched(kAtOnce);
  for (uint32_t first = 0; first < limits::kMaxKeys; first += kAtOnce) {
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const TensorKey key = Key(absl::StrCat("edge_", first + i));
      Send(key, 8, 2, false);
      fetch(key, &fetched[i]);
    }
    const auto over = [&] {
      return std::all_of(fetched.begin(), fetched.end(), [](const Fetched& f) { return f.ended; });
    };
    for (int i = 0; i < 1000 && !over(); ++i) Turn();
    ASSERT_TRUE(over()) << channel_->Explain();
    for (const Fetched& f : fetched) ASSERT_EQ(f.number, 2) << f.status;
  }
  fetch(foreign, &fetched[0]);
  for (int i = 0; i < 1000 && !fetched[0].ended; ++i) Turn();
  EXPECT_EQ(fetched[0].status.code(), absl::StatusCode::kPermissionDenied) << fetched[0].status;
  EXPECT_EQ(Left(foreign), std::vector<int>{1});
}

// ---- No further link ----

// What was taken for it, and meets a tensor now, must not keep that from the other path.
TEST_F(SessionTest, APathThatIsRefusedInASessionLeavesNothingAtTheProducer) {
  PathListener user;
  user.gives_up = true;
  Open(ShmOptions(), &user);
  Fetched met, asked, waits;
  Send(Key("met"), 8, 1, false);
  Fetch(Key("met"), 0, &met);
  Fetch(Key("edge"), 0, &asked);
  Fetch(Key("edge"), 0, &waits);
  for (int i = 0; i < 100; ++i) Turn();
  ASSERT_EQ(met.number, 1);
  hellos_.refuses = true;
  SayNonsense(LinkSide::kConsumer);
  for (int i = 0; i < 2000 && user.given_up.empty(); ++i) Turn();
  EXPECT_TRUE(absl::IsAborted(asked.status)) << asked.status;
  EXPECT_FALSE(waits.ended) << waits.status;
  EXPECT_EQ(user.given_up.size(), 1u) << "what was not asked goes by another channel";
  Send(Key("edge"), 8, 2, false);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(Left(Key("edge")), std::vector<int>{2});
  user.EndAll(absl::CancelledError("over"));
  Close();
}

TEST_F(SessionTest, WhoIsClosedWithoutALinkSaysGoodbye) {
  Open(ShmOptions());
  Fetched asked;
  Fetch(Key("edge"), 0, &asked);
  for (int i = 0; i < 100; ++i) Turn();
  SayNonsense(LinkSide::kProducer);
  for (int i = 0; i < 10 && channel_->open(); ++i) consumer_->poller.Turn();
  ASSERT_FALSE(channel_->open());
  channel_->Close(absl::CancelledError("over"));
  for (int i = 0; i < 100; ++i) Turn();
  EXPECT_TRUE(channel_->Drained());
  Send(Key("edge"), 8, 2, false);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(Left(Key("edge")), std::vector<int>{2});
}

// ---- A producer that is gone ----

class GoneTest : public SessionTest {
 protected:
  static constexpr size_t kAsked = 4;
  static constexpr size_t kFetches = 10;

  void FetchAll(uint64_t incarnation) {
    for (size_t i = 0; i < kFetches; ++i) {
      Fetch(Key(absl::StrCat("edge", i), incarnation), 0, &fetched_[i]);
    }
  }
  // As many fetches are requested as there are slots; the others wait in line.
  void FetchThenLose(uint64_t incarnation) {
    ShmOptions options;
    options.sizes.slots = kAsked;
    options.max_waiting = 0;  // None of them is parked.
    options.patience_ms = 5000;
    Open(options);
    Send(Key("met"), 8, 1, false);
    Fetch(Key("met"), 0, &met_);
    for (int i = 0; i < 100 && !met_.ended; ++i) Turn();
    ASSERT_EQ(met_.number, 1) << met_.status;
    FetchAll(incarnation);
    for (int i = 0; i < 10; ++i) Turn();
    StopProducer();
    lost_ns_ = alarms_.clock().NowNs();
  }
  // Turns until `one` has ended; returns the milliseconds since the producer was lost.
  int64_t EndOf(const Fetched& one) {
    while (!one.ended && alarms_.clock().NowNs() - lost_ns_ < 100'000'000'000) {
      Turn();
      alarms_.AdvanceBy(absl::Milliseconds(5));
    }
    EXPECT_TRUE(one.ended) << channel_->Explain();
    return (alarms_.clock().NowNs() - lost_ns_) / 1'000'000;
  }

  Fetched met_;
  Fetched fetched_[kFetches];
  int64_t lost_ns_ = 0;
};

TEST_F(GoneTest, WhatIsAskedInLineOrNewOfThatLifeEndsSoon) {
  FetchThenLose(kFirstLife);
  for (size_t i = 0; i < kFetches; ++i) {
    EXPECT_LT(EndOf(fetched_[i]), 500) << i;
    EXPECT_EQ(fetched_[i].status.code(), absl::StatusCode::kUnavailable) << fetched_[i].status;
  }
  for (int i = 0; i < 200; ++i) {  // By now its attempts are rare.
    Turn();
    alarms_.AdvanceBy(absl::Milliseconds(50));
  }
  Fetched later;
  lost_ns_ = alarms_.clock().NowNs();
  Fetch(Key("edge"), 0, &later);
  EXPECT_LT(EndOf(later), 2100);
  EXPECT_EQ(later.status.code(), absl::StatusCode::kUnavailable) << later.status;
}

TEST_F(GoneTest, WhatItHasLentIsCopiedToItsEnd) {
  constexpr int64_t kBytes = 16 << 20;  // The copy takes many turns.
  Open(ShmOptions());
  Send(Key("met"), 8, 1, /*in_arena=*/false);
  Fetch(Key("met"), 0, &met_);
  for (int i = 0; i < 100 && !met_.ended; ++i) Turn();
  ASSERT_EQ(met_.number, 1) << met_.status;
  Fetched large;
  Send(Key("large"), kBytes, 3, /*in_arena=*/true);
  Fetch(Key("large"), kBytes, &large);
  for (int i = 0; i < 3; ++i) consumer_->poller.Turn();
  for (int i = 0; i < 3; ++i) producer_->poller.Turn();
  StopProducer();
  for (int i = 0; i < 100 && !large.ended; ++i) Turn();
  EXPECT_EQ(large.number, 3) << large.status;
}

// They may belong to the next incarnation, so they wait, but not for ever.
TEST_F(GoneTest, WhatNamesNoLifeEndsWithinPatience) {
  FetchThenLose(/*incarnation=*/kFirstLife + 1);
  for (int i = 0; i < 100; ++i) Turn();
  for (const Fetched& one : fetched_) EXPECT_FALSE(one.ended) << one.status;
  for (int i = 0; i < 40; ++i) {  // In one leap it would be time for which we did not run.
    alarms_.AdvanceBy(absl::Milliseconds(50));
    Turn();
  }
  Fetched later;
  Fetch(Key("later", kFirstLife + 1), 0, &later);
  for (const Fetched& one : fetched_) {
    const int64_t took_ms = EndOf(one);
    EXPECT_GE(took_ms, 4990);
    EXPECT_LT(took_ms, 5200);
    EXPECT_EQ(one.status.code(), absl::StatusCode::kUnavailable) << one.status;
    EXPECT_NE(one.status.message().find("patience"), absl::string_view::npos) << one.status;
  }
  EXPECT_LT(EndOf(later), 5300) << "it is the peer's silence that counts";
}

TEST_F(GoneTest, AProducerThatReturnsInTimeAbortsWhatNamesItsFormerLife) {
  ShmOptions options;
  options.sizes.slots = kAsked;
  options.max_waiting = 0;
  Open(options);
  Send(Key("met"), 8, 1, false);
  Fetch(Key("met"), 0, &met_);
  for (int i = 0; i < 100 && !met_.ended; ++i) Turn();
  FetchAll(kFirstLife);
  for (int i = 0; i < 10; ++i) Turn();
  StopProducer();
  producer_ = std::make_unique<End>(&alarms_, &hellos_, kProducer, kFirstLife + 1, options_);
  for (size_t i = 0; i < kFetches; ++i) {
    EndOf(fetched_[i]);
    // Fetches in line also learn what became of that incarnation.
    EXPECT_EQ(fetched_[i].status.code(),
              i < kAsked ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted)
        << fetched_[i].status;
  }
}

// The producer was never there here.
TEST_F(GoneTest, WhoWasNeverThereIsGivenUp) {
  ShmOptions options;
  options.patience_ms = 5000;
  Open(options);
  StopProducer();
  lost_ns_ = alarms_.clock().NowNs();
  Fetched first;
  Fetch(Key("edge"), 0, &first);
  const int64_t took_ms = EndOf(first);
  EXPECT_GE(took_ms, 4990);
  EXPECT_LT(took_ms, 5200);
  EXPECT_EQ(first.status.code(), absl::StatusCode::kUnavailable) << first.status;
}

// How a tensor travels.
struct Way {
  const char* name;
  int64_t bytes;
  bool in_arena;
  bool destination;
  bool pulls;
  uint64_t stage_bytes;
  uint64_t parts_bytes;
};
constexpr Way kWays[] = {
    {"in a cell", 8, false, false, true, 1 << 20, 1 << 20},
    {"by reference", 300'000, true, false, true, 1 << 20, 1 << 20},
    {"by reference, copied out", 600'000, true, true, true, 1 << 20, 1 << 20},
    {"staged", 300'000, false, false, true, 4 << 20, 1 << 20},
    {"staged in turns", 600'000, false, false, true, 8 << 20, 1 << 20},
    {"read by the consumer", 600'000, false, true, true, 1 << 20, 1 << 20},
    {"in parts into its place", 600'000, false, true, true, 1 << 20, 512 << 10},
    {"in parts", 600'000, false, false, false, 0, 1 << 20},
};

// Three fetches before the sends and three after them; the link ends in turn `at`.
class EndedAtTest : public SessionTest {
 protected:
  void Run(const Way& way, LinkSide ender, int at, uint32_t tensors) {
    SCOPED_TRACE(absl::StrCat(way.name, ", ended by the ",
                              ender == LinkSide::kProducer ? "producer" : "consumer", " in turn ",
                              at));
    ShmOptions options;
    options.sizes.cells = shm_wire::kMinCells;
    options.sizes.slots = 4;
    options.sizes.references = 16;
    options.allow_pull = way.pulls;
    options.stage_bytes = way.stage_bytes;
    options.parts_bytes = way.parts_bytes;
    Open(options);
    const TensorKey key = Key("edge");
    std::vector<Fetched> fetched(tensors);
    const int64_t destination = way.destination ? way.bytes : 0;
    for (uint32_t i = 0; i < tensors; ++i) {
      if (i == tensors / 2) {
        for (uint32_t j = 0; j < tensors; ++j) {
          Send(key, way.bytes, static_cast<int>(j) + 1, way.in_arena);
        }
      }
      Fetch(key, destination, &fetched[i]);
    }
    for (int i = 0; i < at; ++i) Turn();
    // The other side receives nonsense and ends the link.
    SayNonsense(ender == LinkSide::kProducer ? LinkSide::kConsumer : LinkSide::kProducer);
    const auto over = [&] {
      return std::all_of(fetched.begin(), fetched.end(), [](const Fetched& f) { return f.ended; });
    };
    for (int i = 0; i < 2000 && !over(); ++i) Turn();
    EXPECT_TRUE(over()) << channel_->Explain() << Serving(*producer_->path);
    // No tensor can be received a second time.
    for (int i = 0; i < 20; ++i) Turn();
    const std::vector<int> left = Left(key);
    for (const Fetched& f : fetched) {
      EXPECT_EQ(std::count(left.begin(), left.end(), f.number), 0) << f.number << " is had twice";
    }
    for (uint32_t i = 0; i < tensors && !HasFailure(); ++i) {
      EXPECT_TRUE(fetched[i].status.ok()) << i << ": " << fetched[i].status;
      EXPECT_EQ(fetched[i].number, static_cast<int>(i) + 1);
    }
    EXPECT_EQ(left, std::vector<int>());
    asked_again_ += channel_->Counted().replays;
    Close();
  }
  uint64_t asked_again_ = 0;
};

TEST_F(EndedAtTest, WhatWasAskedArrivesOnceAndInItsTurn) {
  for (const Way& way : kWays) {
    for (LinkSide ender : {LinkSide::kProducer, LinkSide::kConsumer}) {
      asked_again_ = 0;
      for (int at = 0; at < 16 && !HasFailure(); ++at) Run(way, ender, at, 6);
      EXPECT_GT(asked_again_, 0u) << way.name;
    }
  }
}

// ---- Bytes that change on their way ----

class FlippedByteTest : public SessionTest {
 protected:
  static constexpr int kNumber = 0xa7;
  // Finds bytes of the tensor in memory that the two ends share, and flips a bit of one. Null:
  // they are not there. Both ends see it, wherever each has mapped it.
  static uint8_t* FlipShared() {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
      uintptr_t begin = 0;
      uintptr_t end = 0;
      if (!absl::StrContains(line, "memfd:tryst") || !absl::StrContains(line, " rw-s ") ||
          sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) {
        continue;
      }
      uint8_t* const first = reinterpret_cast<uint8_t*>(begin);
      uint8_t* const last = reinterpret_cast<uint8_t*>(end);
      const std::string needle(64, static_cast<char>(kNumber));
      uint8_t* const found = std::search(
          first, last, needle.begin(), needle.end(),
          [](uint8_t byte, char of_needle) { return byte == static_cast<uint8_t>(of_needle); });
      if (found == last) continue;
      found[40] ^= 4;
      return found + 40;
    }
    return nullptr;
  }
  bool IsAnswered() {
    const std::string serving = Serving(*producer_->path);
    return absl::StrContains(serving, "waits to be accepted") ||
           absl::StrContains(serving, "is read by the consumer") ||
           absl::StrContains(serving, "goes in parts");
  }
};

// By whichever way it comes: it is not delivered, and it is not lost.
TEST_F(FlippedByteTest, IsFoundAndTheTensorIsTheNextFetchs) {
  for (const Way& way : kWays) {
    if (way.bytes < 100) continue;  // A cell's bytes are copied by the one who wrote them.
    SCOPED_TRACE(way.name);
    ShmOptions options;
    options.digests = true;
    options.allow_pull = way.pulls;
    options.stage_bytes = way.stage_bytes;
    options.parts_bytes = way.parts_bytes;
    Open(options);
    Fetched fetched;
    const int64_t destination = way.destination ? way.bytes : 0;
    Fetch(Key("edge"), destination, &fetched);
    for (int i = 0; i < 10; ++i) Turn();
    Tensor tensor = way.in_arena ? *producer_->arena->AllocateTensor(DType::kUint8, {way.bytes})
                                 : *Tensor::Allocate(DType::kUint8, {way.bytes});
    memset(tensor.mutable_data(), kNumber, tensor.bytes());
    uint8_t* const bytes = static_cast<uint8_t*>(tensor.mutable_data());
    ASSERT_TRUE(producer_->source.step()->Send(Key("edge"), SendArgs(), tensor, false).ok());
    for (int i = 0; i < 1000 && !IsAnswered(); ++i) producer_->poller.Turn();
    ASSERT_TRUE(IsAnswered()) << Serving(*producer_->path);
    uint8_t* flipped = FlipShared();
    if (flipped == nullptr) {  // It is read where the producer has it.
      flipped = bytes + 1000;
      *flipped ^= 4;
    }
    // It is mended before the producer hears and takes the tensor back: debug builds look then.
    for (int i = 0; i < 2000 && channel_->Counted().digests_wrong == 0; ++i) {
      producer_->poller.Turn();
      consumer_->poller.Turn();
      alarms_.AdvanceBy(absl::Microseconds(110));
    }
    *flipped ^= 4;
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    EXPECT_EQ(fetched.status.code(), absl::StatusCode::kDataLoss) << fetched.status;
    EXPECT_EQ(channel_->Counted().digests_wrong, 1u);
    fetched = Fetched();
    Fetch(Key("edge"), destination, &fetched);
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    EXPECT_EQ(fetched.number, kNumber) << fetched.status;
    tensor = Tensor();
    Close();
  }
}

// ---- What a segment and a consumer are believed ----

// An id says little: the bytes have to be where the segment has them.
TEST_F(SessionTest, ATensorThatOnlyNamesASegmentIsSentFromWhereItIs) {
  class Elsewhere final : public Storage {
   public:
    Elsewhere(std::vector<uint8_t>* bytes, const MemorySpace& space)
        : Storage(bytes->data(), bytes->size(), space) {}
  };
  Open(ShmOptions());
  const Tensor in_segment = *producer_->arena->AllocateTensor(DType::kUint8, {300'000});
  memset(const_cast<void*>(in_segment.data()), 3, in_segment.bytes());
  std::vector<uint8_t> bytes(300'000, 9);
  Tensor tensor = *Tensor::FromStorage(StorageRef::Own(new Elsewhere(&bytes, in_segment.space())),
                                       0, DType::kUint8, {300'000});
  ASSERT_TRUE(
      producer_->source.step()->Send(Key("edge"), SendArgs(), std::move(tensor), false).ok());
  Fetched fetched;
  Fetch(Key("edge"), 0, &fetched);
  for (int i = 0; i < 1000 && !fetched.ended; ++i) Turn();
  EXPECT_EQ(fetched.number, 9) << fetched.status;
  for (int i = 0; i < 100; ++i) Turn();
}

TEST_F(SessionTest, AConsumerThatKeepsAllIsLentSoMuchAlone) {
  ShmOptions options;
  options.stage_bytes = 1 << 20;
  Open(options);
  std::vector<Tensor> kept;
  for (int i = 1; i <= 12; ++i) {
    Send(Key("edge"), 300'000, i, false);
    channel_->Fetch(1, Key("edge"), RecvArgs(), [&](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      kept.push_back(std::move(received.tensor));
    });
    for (int turn = 0; turn < 1000 && kept.size() < static_cast<size_t>(i); ++turn) Turn();
    ASSERT_EQ(kept.size(), static_cast<size_t>(i));
    EXPECT_EQ(NumberOf(kept.back()), i);
    EXPECT_LE(producer_->arena->counters().used_bytes, options.stage_bytes);
  }
}

// Some references are kept back for parts, by which the rest comes.
TEST_F(SessionTest, WhoKeepsTensorsOfASegmentGetsTheRestAllTheSame) {
  ShmOptions options;
  options.sizes.references = 16;
  Open(options);
  std::vector<Tensor> kept;
  for (int i = 1; i <= 20; ++i) {
    Send(Key("edge"), 300'000, i, true);
    channel_->Fetch(1, Key("edge"), RecvArgs(), [&](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      kept.push_back(std::move(received.tensor));
    });
    for (int turn = 0; turn < 1000 && kept.size() < static_cast<size_t>(i); ++turn) Turn();
    ASSERT_EQ(kept.size(), static_cast<size_t>(i)) << Serving(*producer_->path);
    EXPECT_EQ(NumberOf(kept.back()), i);
  }
  EXPECT_GT(channel_->Counted().by_reference, 0u);
  EXPECT_GT(channel_->Counted().in_parts, 0u);
}

// What was copied while another took the last reference waits: those kept back are for parts.
TEST_F(SessionTest, WhatIsCopiedTakesNoReferenceThatIsKeptForParts) {
  ShmOptions options;
  options.sizes.references = 16;
  Open(options);
  const size_t most = options.sizes.references - GivenReferences::kForParts;
  std::vector<Tensor> kept;
  const auto fetch = [&](const std::string& edge) {
    channel_->Fetch(1, Key(edge), RecvArgs(), [&](Received&& received) {
      EXPECT_TRUE(received.status.ok()) << received.status;
      kept.push_back(std::move(received.tensor));
    });
  };
  while (kept.size() + 1 < most) {
    const size_t before = kept.size();
    Send(Key("edge"), 100'000, 1, /*in_arena=*/true);
    fetch("edge");
    for (int turn = 0; turn < 1000 && kept.size() == before; ++turn) Turn();
    ASSERT_EQ(kept.size(), before + 1) << Serving(*producer_->path);
  }
  for (const char* const edge : {"a", "b"}) {
    Send(Key(edge), 1 << 20, 2, /*in_arena=*/false);  // Copied in several turns.
    fetch(edge);
  }
  for (int turn = 0; turn < 1000; ++turn) Turn();
  EXPECT_EQ(kept.size(), most);
  EXPECT_EQ(channel_->Counted().in_parts, 0u) << "both have begun to be copied";
  kept.clear();
  for (int turn = 0; turn < 1000 && kept.empty(); ++turn) Turn();
  ASSERT_EQ(kept.size(), 1u) << Serving(*producer_->path);
  EXPECT_EQ(NumberOf(kept[0]), 2);
}

// In as many cells as it takes.
TEST_F(SessionTest, AFailureArrivesWithItsWholeText) {
  Open(ShmOptions());
  std::string text;
  for (int i = 0; text.size() < 900; ++i) absl::StrAppend(&text, i, " ");
  producer_->source.step()->StartAbort(absl::InternalError(text));
  Fetched fetched;
  Fetch(Key("edge"), 0, &fetched);
  for (int i = 0; i < 1000 && !fetched.ended; ++i) Turn();
  EXPECT_TRUE(absl::StrContains(fetched.status.message(), text)) << fetched.status;
}

TEST_F(SessionTest, WhichTensorsGoInPartsIsTheOptionsToSay) {
  ShmOptions options;
  options.parts_bytes = 256 << 10;
  Open(options);
  for (const int64_t more : {0, 1}) {
    Fetched fetched;
    Send(Key("edge"), (256 << 10) + more, 1, false);
    Fetch(Key("edge"), (256 << 10) + more, &fetched);
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    EXPECT_EQ(fetched.number, 1) << fetched.status;
    EXPECT_EQ(channel_->Counted().pulled, 1u) << more;
    EXPECT_EQ(channel_->Counted().in_parts, static_cast<uint64_t>(more));
  }
}

// Which way is faster is measured by what was accepted.
TEST_F(SessionTest, BothWaysAreTriedForTensorsOfASize) {
  constexpr int64_t kBytes = 512 << 10;
  Open(ShmOptions());
  for (int count = 0; count < 40; ++count) {
    Fetched fetched;
    Send(Key("edge"), kBytes, 1, false);
    Fetch(Key("edge"), kBytes, &fetched);
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    ASSERT_EQ(fetched.number, 1) << fetched.status;
    // So much is measured before the other way is tried.
    EXPECT_TRUE(count >= (8 << 20) / kBytes || channel_->Counted().pulled == 0) << count;
  }
  EXPECT_GT(channel_->Counted().pulled, 0u);
  EXPECT_GT(channel_->Counted().in_parts, 0u);
}

// Else the time in which nothing is out would count, and that way would seem slow for ever.
TEST_F(SessionTest, ATensorThatIsOutWhenItsLinkEndsIsMeasuredNoLonger) {
  constexpr int64_t kBytes = 512 << 10;
  Open(ShmOptions());
  Fetched out;
  Send(Key("edge"), kBytes, 1, false);
  Fetch(Key("edge"), kBytes, &out);
  const auto sent = [&] { return producer_->path->serve_counters().in_parts; };
  for (int i = 0; i < 100 && sent() == 0; ++i) Turn();
  ASSERT_EQ(sent(), 1u);
  ASSERT_FALSE(out.ended) << "the consumer has had no turn since";
  SayNonsense(LinkSide::kConsumer);
  const auto view = [&] { return producer_->path->serving()[0]->View(); };
  for (int i = 0; i < 100 && view().health == PathHealth::kWorking; ++i) {
    producer_->poller.Turn();
    alarms_.AdvanceBy(absl::Microseconds(110));
  }
  ASSERT_NE(view().health, PathHealth::kWorking) << view().state;
  for (int i = 0; i < 2000 && !out.ended; ++i) Turn();
  ASSERT_EQ(out.number, 1) << out.status;
  alarms_.AdvanceBy(absl::Seconds(10));
  for (int count = 0; count < 100 && view().note.empty(); ++count) {
    Fetched fetched;
    Send(Key("edge"), kBytes, 1, false);
    Fetch(Key("edge"), kBytes, &fetched);
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    ASSERT_EQ(fetched.number, 1) << fetched.status;
  }
  EXPECT_TRUE(absl::StrContains(view().note, " go in parts (")) << view().note;
  EXPECT_FALSE(absl::StrContains(view().note, "(0.0 GiB/s")) << view().note;
}

// Where helpers read a large tensor fast, both ways are tried. Below that, the options say which.
TEST_F(SessionTest, HelpersAreReckonedWithFromAMebibyteOn) {
  ShmOptions options;
  options.parts_bytes = 8 << 20;
  options.crew = std::make_shared<Crew>(1, &Crew::Never);
  Open(options);
  for (const int64_t bytes : {(1 << 20) - 1, 1 << 20}) {
    Fetched fetched;
    Send(Key("edge"), bytes, 1, false);
    Fetch(Key("edge"), bytes, &fetched);
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    EXPECT_EQ(fetched.number, 1) << fetched.status;
    EXPECT_EQ(channel_->Counted().pulled, 1u) << bytes;
    EXPECT_EQ(channel_->Counted().in_parts, bytes == 1 << 20 ? 1u : 0u);
  }
}

// What it has turned down goes back, at whatever moment the link ends.
TEST_F(SessionTest, WhatWasRefusedIsNotAcceptedByTheEndOfTheLink) {
  for (const LinkSide ender : {LinkSide::kProducer, LinkSide::kConsumer}) {
    for (int at = 0; at < 12 && !HasFailure(); ++at) {
      SCOPED_TRACE(absl::StrCat(ender == LinkSide::kProducer ? "producer " : "consumer ", at));
      Open(ShmOptions());
      Fetched met;
      Send(Key("met"), 8, 1, false);
      Fetch(Key("met"), 0, &met);
      for (int i = 0; i < 100 && !met.ended; ++i) Turn();
      Fetched fetched;
      Send(Key("edge"), 8, 1, false);
      Fetch(Key("edge"), 16, &fetched);  // No room for such a tensor.
      for (int i = 0; i < at / 2; ++i) Turn();
      if (at % 2 == 1) {
        consumer_->poller.Turn();
        alarms_.AdvanceBy(absl::Microseconds(110));
      }
      SayNonsense(ender == LinkSide::kProducer ? LinkSide::kConsumer : LinkSide::kProducer);
      // Whichever end hears of it first.
      if (at % 2 == 0) consumer_->poller.Turn();
      for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
      EXPECT_EQ(fetched.status.code(), absl::StatusCode::kInvalidArgument) << fetched.status;
      for (int i = 0; i < 100; ++i) Turn();
      EXPECT_EQ(Left(Key("edge")), std::vector<int>{1});
      Close();
    }
  }
}

// One tensor of 600,000 bytes, which the consumer reads in two turns, and a fetch that was answered
// with it.
class OneReadTest : public SessionTest {
 protected:
  void StartRead(Cancellation* cancellation = nullptr, int64_t bytes = kBytes) {
    ShmOptions options;
    options.sizes.cells = shm_wire::kMinCells;
    options.sizes.slots = 4;
    options.parts_bytes = 4 << 20;
    Open(options);
    Send(Key("edge"), bytes, 1, false);
    RecvArgs args;
    args.destination = *Tensor::Allocate(DType::kUint8, {bytes});
    args.cancellation = cancellation;
    FetchWith(Key("edge"), args, &fetched_);
    const auto reads = [&] {
      LiveOps ops(8);
      channel_->ListOps(&ops);
      const std::vector<LiveOp> listed = ops.Take();
      return !listed.empty() && listed[0].span.waits_for() == WaitsFor::kCopy;
    };
    for (int i = 0; i < 100 && !reads(); ++i) Turn();
    ASSERT_TRUE(reads()) << channel_->Explain();
  }
  // Turns both until the fetch has ended; true if it has.
  bool RunToEnd() {
    for (int i = 0; i < 2000 && !fetched_.ended; ++i) Turn();
    return fetched_.ended;
  }
  static constexpr int64_t kBytes = 600'000;
  Fetched fetched_;
};

// The memory may hold another tensor by then, so what was read from it is not delivered.
TEST_F(OneReadTest, AProducerThatStopsMayLetGoOfWhatIsRead) {
  StartRead();
  producer_->path->Close(absl::CancelledError("it stops"));
  ASSERT_TRUE(RunToEnd());
  EXPECT_EQ(fetched_.status.code(), absl::StatusCode::kUnavailable) << fetched_.status;
  EXPECT_NE(fetched_.status.message().find("incarnation 0000000000000001"), std::string::npos)
      << fetched_.status;
  EXPECT_EQ(Left(Key("edge")), std::vector<int>{1}) << "the loan was not taken";
}

// The end of the link is in its socket, at which a consumer does not look in every turn: the word
// in their memory counts.
TEST_F(OneReadTest, APullThatEndsBesideTheProducersEndIsNotBelieved) {
  for (const int turns : {0, 1}) {
    SCOPED_TRACE(turns);
    ShmOptions options;
    options.parts_bytes = 1 << 20;
    Open(options);
    Fetched met;
    Send(Key("met"), 8, 1, false);
    Fetch(Key("met"), 0, &met);
    for (int i = 0; i < 100 && !met.ended; ++i) Turn();
    for (int i = 0; i < turns; ++i) Turn();
    fetched_ = Fetched();
    Send(Key("edge"), kBytes, 1, false);
    Fetch(Key("edge"), kBytes, &fetched_);
    const auto reads = [&] {
      return absl::StrContains(Serving(*producer_->path), "is read by the consumer");
    };
    for (int i = 0; i < 100 && !reads(); ++i) Turn();
    ASSERT_TRUE(reads()) << Serving(*producer_->path);
    consumer_->poller.Turn();  // The first half.
    ASSERT_FALSE(fetched_.ended);
    producer_->path->Close(absl::CancelledError("it stops"));
    ASSERT_TRUE(RunToEnd());
    EXPECT_FALSE(fetched_.status.ok());
    Close();
  }
}

// The producer has not heard of it when the link ends.
TEST_F(OneReadTest, WhatIsGivenUpWhileItIsReadIsNotAccepted) {
  for (const LinkSide ender : {LinkSide::kProducer, LinkSide::kConsumer}) {
    fetched_ = Fetched();
    Cancellation cancellation;
    StartRead(&cancellation, 4 * kBytes);  // The rest is not read in one turn.
    cancellation.StartCancel();
    consumer_->poller.Turn();
    SayNonsense(ender == LinkSide::kProducer ? LinkSide::kConsumer : LinkSide::kProducer);
    if (ender == LinkSide::kConsumer) consumer_->poller.Turn();
    ASSERT_TRUE(RunToEnd());
    EXPECT_TRUE(absl::IsCancelled(fetched_.status)) << fetched_.status;
    for (int i = 0; i < 100; ++i) Turn();
    EXPECT_EQ(Left(Key("edge")), std::vector<int>{1});
    Close();
  }
}

TEST_F(OneReadTest, AConsumerThatIsStuckIsWaitedForAndThenGetsNothing) {
  StartRead();
  SayNonsense(LinkSide::kConsumer);
  for (int i = 0; i < 100; ++i) {  // The consumer's thread is stuck.
    producer_->poller.Turn();
    alarms_.AdvanceBy(absl::Milliseconds(1));
  }
  EXPECT_NE(Serving(*producer_->path).find("is read by the consumer"), std::string::npos)
      << Serving(*producer_->path);
  for (int i = 0; i < 100; ++i) {
    producer_->poller.Turn();
    producer_->path->Maintain();
    alarms_.AdvanceBy(absl::Seconds(1));
  }
  EXPECT_EQ(Left(Key("edge")), std::vector<int>{1}) << "it cannot be delivered any more";
  ASSERT_TRUE(RunToEnd());
  EXPECT_FALSE(fetched_.status.ok());
}

TEST_F(OneReadTest, AConsumerThatIsLateGoesOn) {
  StartRead();
  SayNonsense(LinkSide::kConsumer);
  for (int i = 0; i < 100; ++i) {
    producer_->poller.Turn();
    alarms_.AdvanceBy(absl::Milliseconds(100));
  }
  ASSERT_TRUE(RunToEnd());
  EXPECT_TRUE(fetched_.status.ok()) << fetched_.status;
  EXPECT_EQ(fetched_.number, 1);
  EXPECT_EQ(Left(Key("edge")), std::vector<int>());
}

TEST_F(OneReadTest, AHelloOfAnEarlierAttemptDoesNotEndTheLink) {
  StartRead();
  absl::Status answered;
  producer_->path->OnHello(hellos_.last,
                           [&](absl::StatusOr<Hello> answer) { answered = answer.status(); });
  EXPECT_EQ(answered.code(), absl::StatusCode::kAborted) << answered;
  ASSERT_TRUE(RunToEnd());
  EXPECT_EQ(fetched_.number, 1) << fetched_.status;
  EXPECT_EQ(channel_->Counted().breaks, 0u);
}

TEST_F(OneReadTest, WhatIsForTheNextLifeWaitsForItAndTheRestEnds) {
  StartRead();
  Fetched of_this, of_next;
  Fetch(Key("other"), 0, &of_this);
  Fetch(Key("other", kFirstLife + 1), 0, &of_next);
  for (int i = 0; i < 4; ++i) Turn();
  StopProducer();
  for (int i = 0; i < 50; ++i) Turn();
  EXPECT_EQ(of_this.status.code(), absl::StatusCode::kUnavailable) << of_this.status;
  EXPECT_FALSE(of_next.ended) << of_next.status;
  producer_ = std::make_unique<End>(&alarms_, &hellos_, kProducer, kFirstLife + 1, options_);
  Send(Key("other", kFirstLife + 1), 8, 5, false);
  for (int i = 0; i < 20'000 && !of_next.ended; ++i) Turn();
  EXPECT_EQ(of_next.number, 5) << of_next.status << channel_->Explain();
}

// What a fetch of many is told must not depend on what another was told before.
TEST_F(SessionTest, AManyThatFailedLeavesNothingToTheNext) {
  Open(ShmOptions());
  const std::vector<TensorKey> keys = {Key("one"), Key("two")};
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  std::vector<absl::Status> ended;
  const auto fetch = [&](const RecvArgs& with) {
    ended.clear();
    ManyFetchedFn done = [&](const absl::Status& status, absl::Span<Received> results) {
      ended.push_back(status);
      for (const Received& result : results) ended.push_back(result.status);
    };
    EXPECT_TRUE(channel_->FetchMany(1, keys, with, &done));
  };
  fetch(args);
  for (int i = 0; i < 10; ++i) Turn();
  cancellation.StartCancel();
  for (int i = 0; i < 100 && ended.empty(); ++i) Turn();
  ASSERT_EQ(ended.size(), 3u);
  for (const absl::Status& status : ended) EXPECT_TRUE(absl::IsCancelled(status)) << status;
  for (int i = 0; i < 100; ++i) Turn();
  for (const TensorKey& key : keys) Send(key, 8, 1, false);
  fetch(RecvArgs());
  for (int i = 0; i < 100 && ended.empty(); ++i) Turn();
  ASSERT_EQ(ended.size(), 3u);
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
  int ends = 0;
  ManyFetchedFn done = [&](const absl::Status& status, absl::Span<Received> results) {
    ends += status.ok() && results.empty();
  };
  EXPECT_TRUE(channel_->FetchMany(1, {}, RecvArgs(), &done));
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(ends, 1) << "also where there is nothing to fetch";
}

// The consumer would take the second time for nonsense.
TEST_F(SessionTest, ThatASegmentIsGoneIsToldOnce) {
  constexpr int64_t kBytes = 3 << 20;  // One fits into the first segment.
  Open(ShmOptions());
  const auto trim = [this] {
    for (int i = 0; i < 2; ++i) producer_->arena->Trim();
    EXPECT_EQ(producer_->arena->counters().segments, 1u);
    for (int i = 0; i < 10; ++i) Turn();
  };
  Fetched fetched[2];
  for (const char* const edge : {"a", "b"}) Send(Key(edge), kBytes, 1, /*in_arena=*/true);
  ASSERT_EQ(producer_->arena->counters().segments, 2u);
  for (int i = 0; i < 2; ++i) Fetch(Key(i == 0 ? "a" : "b"), 0, &fetched[i]);
  for (int i = 0; i < 1000 && !(fetched[0].ended && fetched[1].ended); ++i) Turn();
  EXPECT_EQ(channel_->Counted().by_reference, 2u);
  for (int i = 0; i < 100; ++i) Turn();
  trim();
  for (int i = 0; i < 2; ++i) {  // And one of which the consumer never heard.
    const Tensor one = *producer_->arena->AllocateTensor(DType::kUint8, {kBytes});
    const Tensor other = *producer_->arena->AllocateTensor(DType::kUint8, {kBytes});
    ASSERT_EQ(producer_->arena->counters().segments, 2u);
  }
  trim();
  fetched[0] = Fetched();
  Send(Key("c"), kBytes, 2, true);
  Fetch(Key("c"), 0, &fetched[0]);
  for (int i = 0; i < 1000 && !fetched[0].ended; ++i) Turn();
  EXPECT_EQ(fetched[0].number, 2) << fetched[0].status;
  EXPECT_EQ(channel_->Counted().breaks, 0u);
}

// One of the consumer's view; its number is the next segment's. That of parts is never gone.
TEST_F(SessionTest, ASegmentThatIsGoneIsMappedNoLongerAndItsNumberIsUsedAgain) {
  constexpr int64_t kBytes = 3 << 20;  // One fits into the first segment.
  Open(ShmOptions());
  const auto mapped = [] {
    int count = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      count += absl::StrContains(line, "memfd:tryst");
    return count;
  };
  const auto fetch = [this](const char* edge, int64_t destination_bytes, int number) {
    Fetched fetched;
    Fetch(Key(edge), destination_bytes, &fetched);
    for (int i = 0; i < 2000 && !fetched.ended; ++i) Turn();
    EXPECT_EQ(fetched.number, number) << fetched.status;
  };
  Send(Key("first"), kBytes, 1, /*in_arena=*/true);
  fetch("first", 0, 1);
  Send(Key("parts"), 40'000, 2, /*in_arena=*/false);
  fetch("parts", 40'000, 2);
  ASSERT_EQ(channel_->Counted().in_parts, 1u);
  for (int i = 0; i < 100; ++i) Turn();
  const int before = mapped();
  for (int round = 0; round < 3; ++round) {
    for (const char* const edge : {"a", "b"}) Send(Key(edge), kBytes, 3 + round, true);
    ASSERT_EQ(producer_->arena->counters().segments, 2u);
    for (const char* const edge : {"a", "b"}) fetch(edge, 0, 3 + round);
    Send(Key("parts"), 40'000, 2, false);
    fetch("parts", 40'000, 2);
    for (int i = 0; i < 100; ++i) Turn();
    for (int i = 0; i < 2; ++i) producer_->arena->Trim();
    EXPECT_EQ(producer_->arena->counters().segments, 1u);
    for (int i = 0; i < 10; ++i) Turn();
    EXPECT_EQ(mapped(), before) << round;
    Send(Key("parts"), 40'000, 2, false);
    fetch("parts", 40'000, 2);
    EXPECT_EQ(channel_->Counted().breaks, round == 2 ? 1u : 0u);
    if (round != 1) continue;
    SayNonsense(LinkSide::kConsumer);  // Numbers begin anew with the next link.
    for (int i = 0; i < 10; ++i) Turn();
  }
}

TEST_F(SessionTest, WhatIsSaidOverAllLinksIsCounted) {
  Open(ShmOptions());
  uint64_t messages = 0;
  for (int link = 0; link < 3; ++link) {
    for (int i = 0; i < 20 - 5 * link; ++i) {
      Fetched fetched;
      Send(Key("edge"), 8, 1, false);
      Fetch(Key("edge"), 0, &fetched);
      for (int turn = 0; turn < 1000 && !fetched.ended; ++turn) Turn();
      ASSERT_EQ(fetched.number, 1) << fetched.status;
    }
    const uint64_t now = channel_->Counted().messages;
    EXPECT_GE(now, messages + static_cast<uint64_t>(20 - 5 * link));
    messages = now;
    SayNonsense(LinkSide::kConsumer);
    for (int i = 0; i < 10; ++i) Turn();
  }
}

// As where the process has no descriptor left for it.
TEST_F(SessionTest, ATransportThatCouldNotOpenGoes) {
  Open(ShmOptions());
  rlimit was{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
  rlimit none = was;
  none.rlim_cur = 0;
  TransportContext context;
  context.poller = &consumer_->poller;
  context.bootstrap = &hellos_;
  context.source = &consumer_->source;
  context.self = kConsumer;
  auto path = std::make_unique<ShmTransport>(context, consumer_->arena, ShmOptions());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status opened = path->Open();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
  EXPECT_FALSE(opened.ok());
  path.reset();
}

// The memory is its owner's again.
TEST_F(SessionTest, NothingIsCopiedForAFetchThatHasEnded) {
  Open(ShmOptions());
  Send(Key("edge"), 8 << 20, 5, /*in_arena=*/true);
  Cancellation cancellation;
  RecvArgs args;
  args.cancellation = &cancellation;
  args.destination = *Tensor::Allocate(DType::kUint8, {8 << 20});
  uint8_t* const into = static_cast<uint8_t*>(args.destination.mutable_data());
  memset(into, 0, args.destination.bytes());
  const size_t last = args.destination.bytes() - 1;
  Fetched fetched;
  FetchWith(Key("edge"), args, &fetched);
  for (int i = 0; i < 1000 && into[0] == 0; ++i) Turn();
  ASSERT_EQ(into[0], 5);
  ASSERT_EQ(into[last], 0) << "it is copied in one turn";
  cancellation.StartCancel();
  for (int i = 0; i < 1000 && !fetched.ended; ++i) Turn();
  EXPECT_TRUE(absl::IsCancelled(fetched.status)) << fetched.status;
  const std::vector<uint8_t> then(into, into + last + 1);
  for (int i = 0; i < 200; ++i) Turn();
  EXPECT_EQ(memcmp(then.data(), into, then.size()), 0);
  EXPECT_EQ(into[last], 0);
}

// ---- Who has nothing to do ----

class CountedClock final : public Clock {
 public:
  int64_t NowNs() const override {
    ++reads;
    return SteadyClock().NowNs();
  }
  mutable std::atomic<int64_t> reads{0};
};

// A thread that sleeps reads no clock.
TEST_F(SessionTest, AProducerWhoseTensorsAreAllAcceptedSleeps) {
  CountedClock clock;
  Open(ShmOptions());
  StopProducer();
  producer_ = std::make_unique<End>(&alarms_, &hellos_, kProducer, kFirstLife, options_, &clock);
  Send(Key("edge"), 100'000, 3, /*in_arena=*/true);
  Fetched fetched;
  Fetch(Key("edge"), 0, &fetched);
  for (int i = 0; i < 10'000 && !fetched.ended; ++i) Turn();
  ASSERT_EQ(fetched.number, 3) << fetched.status;
  End* const producer = producer_.get();
  producer->poller.Start();
  // Longer than the longest pause between two looks; again where the machine was slow.
  bool slept = false;
  for (int i = 0; i < 5 && !slept; ++i) {
    const int64_t before = clock.reads;
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    slept = clock.reads == before;
  }
  EXPECT_TRUE(slept);
  bool drained = false;
  producer->poller.RunAndWait([&] {
    producer->path->Close(absl::CancelledError("over"));
    producer->source.step()->StartAbort(absl::CancelledError("over"));
  });
  while (!drained) producer->poller.RunAndWait([&] { drained = producer->path->Drained(); });
  producer->poller.Stop();
  producer_.reset();
}

// ---- What ends while its copy is under way ----

// What it had copied no longer counts against what the consumer may be lent.
TEST_F(SessionTest, ATakeThatIsCancelledWhileItIsCopiedLeavesRoomForOthers) {
  constexpr int64_t kLarge = 2 << 20;  // Copied in several turns.
  ShmOptions options;
  options.stage_bytes = 5 << 20;
  Open(options);
  Send(Key("edge"), kLarge, 1, /*in_arena=*/false);
  for (int i = 0; i < 5; ++i) {
    Cancellation cancellation;
    RecvArgs args;
    args.cancellation = &cancellation;
    Fetched cancelled;
    FetchWith(Key("edge"), args, &cancelled);
    const auto copies = [this] {
      LiveOps ops(100);
      producer_->path->ListOps(&ops);
      const std::vector<LiveOp> all = ops.Take();
      return all.size() == 1 && all[0].span.waits_for() == WaitsFor::kCopy;
    };
    for (int turn = 0; turn < 100 && !copies(); ++turn) Turn();
    ASSERT_TRUE(copies()) << channel_->Explain();
    cancellation.StartCancel();
    for (int turn = 0; turn < 100 && !cancelled.ended; ++turn) Turn();
    EXPECT_EQ(cancelled.status.code(), absl::StatusCode::kCancelled) << cancelled.status;
  }
  EXPECT_EQ(producer_->path->serve_counters().staged, 0u);
  Fetched fetched;
  Fetch(Key("edge"), 0, &fetched);
  for (int turn = 0; turn < 100 && !fetched.ended; ++turn) Turn();
  EXPECT_EQ(fetched.number, 1) << fetched.status;
  EXPECT_EQ(producer_->path->serve_counters().staged, 1u);
  EXPECT_EQ(producer_->path->serve_counters().in_parts, 0u);
}

// ---- A path that is left ----

class LeftPathTest : public SessionTest {
 protected:
  // Opens a link to a producer that answers and has no room left.
  void OpenFull() {
    ShmOptions options;
    options.give_up_ms = kGiveUpMs;
    Open(options, &user_);
    hellos_.full = true;
    opened_ns_ = alarms_.clock().NowNs();
  }
  int64_t NowMs() { return (alarms_.clock().NowNs() - opened_ns_) / 1'000'000; }

  static constexpr int64_t kGiveUpMs = 3000;
  PathListener user_;
  int64_t opened_ns_ = 0;
};

TEST_F(LeftPathTest, IsLeftWhenItHasFailedForGiveUpMsAndNotBefore) {
  OpenFull();
  Fetched fetched;
  Fetch(Key("edge"), 0, &fetched);
  while (user_.failed == 0 && NowMs() < 10'000) Turn();
  EXPECT_GE(NowMs(), kGiveUpMs);
  EXPECT_LE(NowMs(), kGiveUpMs + 2200) << "the longest pause between two attempts is 1 s";
  EXPECT_FALSE(fetched.ended) << "it goes on elsewhere: " << fetched.status;
  Close();
}

const auto* const kReached = ::testing::AddGlobalTestEnvironment(new GuardsReached("shm: ", 6));

}  // namespace
}  // namespace tryst
