// What a consumer does not believe of a producer, and what a producer does not give a consumer, on
// every path.

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "channel/arena/arena.h"
#include "channel/rdma/landing_pool.h"
#include "channel/shm/local_socket.h"
#include "channel/shm/same_host.h"
#include "gtest/gtest.h"
#include "tests/process/pair/pool_counters.h"
#include "tests/process/pair/worker_pair.h"
#include "verbs/forwarding_nic.h"
#include "verbs/soft/soft_nic.h"

namespace tryst {
namespace {

std::unique_ptr<Nic> OpenSoft(bool renews_keys = true) {
  SoftNicOptions options;
  options.limits.renews_keys = renews_keys;
  auto nic = OpenSoftNic(options);
  TRYST_CHECK(nic.ok()) << nic.status();
  return *std::move(nic);
}

// Remembers where it wrote tensors and with which key, and can write there again, as a compromised
// producer could.
class RememberingNic final : public ForwardingNic {
 public:
  explicit RememberingNic(std::unique_ptr<Nic> nic)
      : ForwardingNic(std::move(nic)), bytes_(1 << 20, 0xee) {
    auto region = this->nic()->RegisterRegion(bytes_.data(), bytes_.size(), kLocalOnly);
    TRYST_CHECK(region.ok());
    region_ = *std::move(region);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    auto made = nic()->CreateQueuePair(options);
    if (!made.ok()) return made.status();
    return std::unique_ptr<QueuePair>(new Remembering(this, *std::move(made)));
  }
  bool has_written() const { return last_.remote_key != 0; }
  void WriteAgain(uint64_t bytes) {
    const Entry entry = {region_->address(), bytes, region_->local_key()};
    SendWork work = last_;
    work.op = SendOp::kWrite;
    work.signaled = false;
    work.entries = absl::MakeConstSpan(&entry, 1);
    TRYST_CHECK(pair_ != nullptr && pair_->PostSend({work}).ok());
  }

 private:
  class Remembering final : public ForwardingQueuePair {
   public:
    Remembering(RememberingNic* nic, std::unique_ptr<QueuePair> queue_pair)
        : ForwardingQueuePair(std::move(queue_pair)), nic_(nic) {}
    ~Remembering() override {
      if (nic_->pair_ == this) nic_->pair_ = nullptr;
    }
    absl::Status PostSend(absl::Span<const SendWork> works) override {
      for (const SendWork& work : works) {
        // Only a tensor is that long; what travels with it is shorter.
        if (work.entries.empty() || work.entries[0].bytes < 100'000) continue;
        nic_->last_ = work;
        nic_->pair_ = this;
      }
      return ForwardingQueuePair::PostSend(works);
    }

   private:
    RememberingNic* const nic_;
  };

  std::vector<uint8_t> bytes_;
  std::unique_ptr<Region> region_;
  SendWork last_;
  QueuePair* pair_ = nullptr;
};

class TrustTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 300'000;

  void Open(std::function<void(TransportsOptions*)> adjust, bool shares_memory,
            std::function<void(Hello*)> tamper = nullptr) {
    WorkerPairOptions options;
    options.threads = false;
    options.open_nic = [this]() -> std::unique_ptr<Nic> {
      auto nic = std::make_unique<RememberingNic>(OpenSoft(renews_keys_));
      if (producer_nic_ == nullptr) producer_nic_ = nic.get();
      return nic;
    };
    options.adjust = [this, adjust, shares_memory](TransportsOptions* pool) {
      pool->probe_ms = 50;
      if (shares_memory) {
        ArenaOptions arena;
        arena.seed = ++seed_ << 32;
        pool->shm_arena = Arena::Make(arena);
        if (producer_arena_ == nullptr) producer_arena_ = pool->shm_arena;
      }
      if (adjust) adjust(pool);
    };
    options.tamper = std::move(tamper);
    pair_ = std::make_unique<WorkerPair>(options);
  }

  static Tensor Filled(Tensor tensor, uint8_t value) {
    memset(tensor.mutable_data(), value, tensor.bytes());
    return tensor;
  }
  static Tensor Filled(int64_t bytes, uint8_t value) {
    return Filled(*Tensor::Allocate(DType::kUint8, {bytes}), value);
  }
  void Send(const std::string& edge, Tensor tensor) {
    ASSERT_TRUE(
        pair_->step()->Send(WorkerPair::Key(edge), SendArgs(), std::move(tensor), false).ok());
  }
  bool TurnUntil(const std::function<bool()>& condition) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!condition() && absl::Now() < until) pair_->Turn();
    return condition();
  }
  absl::StatusOr<Tensor> Fetch(const std::string& edge, const RecvArgs& args = {}) {
    bool ended = false;
    absl::StatusOr<Tensor> got = absl::UnknownError("it hangs");
    pair_->consumer()->Fetch(1, WorkerPair::Key(edge), args, [&](Received&& received) {
      ended = true;
      if (received.status.ok()) {
        got = std::move(received.tensor);
      } else {
        got = std::move(received.status);
      }
    });
    EXPECT_TRUE(TurnUntil([&] { return ended; })) << Explain();
    return got;
  }
  std::string Explain() { return pair_->consumer()->ExplainNow(""); }
  std::string ExplainProducer() { return pair_->producer()->ExplainNow(""); }

  // The limit holds for each size, and so for each way that a tensor may travel.
  void ExpectLimitHolds() {
    for (const int64_t bytes : {int64_t{60}, int64_t{3000}, kBytes, int64_t{2'000'000}}) {
      for (const bool into_place : {false, true}) {
        for (const bool in_arena : {false, true}) {
          if (in_arena && producer_arena_ == nullptr) continue;
          const std::string edge = absl::StrCat("of", bytes, into_place, in_arena);
          Tensor tensor = Filled(bytes, 1);
          if (in_arena) {
            tensor = Filled(*producer_arena_->AllocateTensor(DType::kUint8, {bytes}), 1);
          }
          Send(edge, tensor);
          RecvArgs args;
          if (into_place) args.destination = Filled(bytes, 0);
          const auto got = Fetch(edge, args);
          EXPECT_EQ(got.status().code(), absl::StatusCode::kResourceExhausted) << edge;
          EXPECT_TRUE(absl::StrContains(got.status().message(), "max_tensor_bytes"))
              << got.status();
          if (into_place) {
            EXPECT_EQ(args.destination.data_as<uint8_t>()[0], 0) << edge;
          }
        }
      }
    }
    auto strings = Tensor::Allocate(DType::kString, TensorShape({1}));
    ASSERT_TRUE(strings.ok());
    strings->mutable_strings()[0] = std::string(5000, 'x');
    Send("strings", *strings);
    EXPECT_EQ(Fetch("strings").status().code(), absl::StatusCode::kResourceExhausted);
    Send("small", Filled(50, 7));
    const auto small = Fetch("small");
    ASSERT_TRUE(small.ok()) << small.status();
    EXPECT_EQ(small->data_as<uint8_t>()[49], 7);
  }

  bool renews_keys_ = true;
  uint64_t seed_ = 0;
  RememberingNic* producer_nic_ = nullptr;
  std::shared_ptr<Arena> producer_arena_;
  std::unique_ptr<WorkerPair> pair_;
};

constexpr uint64_t kLimit = 50;

TEST_F(TrustTest, ATensorOverTheLimitIsRefusedOverSharedMemory) {
  Open([](TransportsOptions* pool) { pool->max_tensor_bytes = kLimit; }, true);
  ExpectLimitHolds();
}

TEST_F(TrustTest, ATensorOverTheLimitIsRefusedOverRdma) {
  Open([](TransportsOptions* pool) { pool->max_tensor_bytes = kLimit; }, false);
  ExpectLimitHolds();
}

TEST_F(TrustTest, AProducerWritesNoMoreAfterItsLastWord) {
  Open(nullptr, false);
  for (const bool into_place : {false, true}) {
    for (int i = 0; i < 3; ++i) {
      const std::string edge = absl::StrCat("a", into_place, i);
      Send(edge, Filled(kBytes, 3));
      RecvArgs args;
      if (into_place) args.destination = Filled(kBytes, 0);
      const auto got = Fetch(edge, args);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_TRUE(producer_nic_->has_written());
      const uint64_t breaks = RdmaFetched(*pair_->consumer()).breaks;
      producer_nic_->WriteAgain(1000);
      // Another tensor, which may land in the same place.
      Send("next" + edge, Filled(kBytes, 4));
      const auto next = Fetch("next" + edge);
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_TRUE(TurnUntil([&] { return RdmaFetched(*pair_->consumer()).breaks > breaks; }));
      EXPECT_EQ(got->data_as<uint8_t>()[0], 3) << "written after it was delivered";
      EXPECT_EQ(next->data_as<uint8_t>()[0], 4);
    }
  }
  EXPECT_TRUE(absl::StrContains(Explain(), "the key of a landing ends with its tensor"))
      << Explain();
}

// docs/SECURITY.md says so under "What is not protected".
TEST_F(TrustTest, OverANicThatCannotEndKeysAProducerReachesItsOwnTensors) {
  renews_keys_ = false;
  Open(nullptr, false);
  Send("a", Filled(kBytes, 3));
  const auto got = Fetch("a");
  ASSERT_TRUE(got.ok()) << got.status();
  producer_nic_->WriteAgain(1000);
  EXPECT_TRUE(TurnUntil([&] { return got->data_as<uint8_t>()[999] == 0xee; }));
  EXPECT_TRUE(absl::StrContains(Explain(), "landings are its alone")) << Explain();
}

TEST(LandingPoolTest, ALandingIsLentAgainUnderAnotherKey) {
  auto pool = std::make_shared<LandingPool>(OpenSoft(), 1 << 20);
  StorageRef first = pool->Take(4096, LandingPool::For::kReady, pool->NewWriter());
  void* const place = first->data();
  const uint32_t key = LandingPool::AsLanding(first)->TellKey();
  first = StorageRef();
  StorageRef second = pool->Take(4096, LandingPool::For::kReady, pool->NewWriter());
  EXPECT_EQ(second->data(), place);
  EXPECT_NE(LandingPool::AsLanding(second)->TellKey(), key);
}

// Where a key cannot be revoked, a landing is lent again only to the producer that knows its key.
TEST(LandingPoolTest, WhereKeysLastALandingIsLentToItsWriterAlone) {
  auto pool = std::make_shared<LandingPool>(OpenSoft(false), 16 << 10);
  const uint64_t one = pool->NewWriter();
  const uint64_t other = pool->NewWriter();
  EXPECT_NE(one, other);
  StorageRef landing = pool->Take(4096, LandingPool::For::kReady, one);
  void* const place = landing->data();
  const uint32_t key = LandingPool::AsLanding(landing)->TellKey();
  landing = StorageRef();
  StorageRef others = pool->Take(4096, LandingPool::For::kReady, other);
  EXPECT_NE(others->data(), place);
  landing = pool->Take(4096, LandingPool::For::kReady, one);
  EXPECT_EQ(landing->data(), place);
  EXPECT_EQ(LandingPool::AsLanding(landing)->TellKey(), key);
  landing = StorageRef();
  // A landing that is kept for one producer may be freed for another: its region ends, and the key
  // with it.
  std::vector<StorageRef> all;
  for (int i = 0; i < 3; ++i) all.push_back(pool->Take(4096, LandingPool::For::kReady, other));
  for (const StorageRef& each : all) {
    ASSERT_TRUE(each);
    EXPECT_NE(LandingPool::AsLanding(each)->TellKey(), key);
  }
}

TEST_F(TrustTest, WhoIsKeptApartGetsCopiesOfItsOwnTensorsAlone) {
  Open([](TransportsOptions* pool) { pool->shm.apart = true; }, true);
  for (const int64_t bytes : {int64_t{60}, kBytes, int64_t{5'000'000}}) {
    for (const bool in_arena : {false, true}) {
      const std::string edge = absl::StrCat("a", bytes, in_arena);
      Tensor tensor = Filled(bytes, 5);
      if (in_arena) {
        tensor = Filled(*producer_arena_->AllocateTensor(DType::kUint8, {bytes}), 5);
      }
      Send(edge, tensor);
      const auto got = Fetch(edge);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(got->data_as<uint8_t>()[bytes - 1], 5);
    }
  }
  const ServeCounters served = ShmServed(*pair_->producer());
  EXPECT_EQ(served.by_reference, 0u);
  EXPECT_EQ(served.staged, 0u);
  EXPECT_EQ(served.in_parts, 4u);
  EXPECT_TRUE(absl::StrContains(ExplainProducer(), "gets copies alone")) << ExplainProducer();
}

// A session that began over shared memory has more slots than one over a NIC asks for, and keeps
// them when its producer was restarted.
TEST_F(TrustTest, ANicServesAsManySlotsAsSharedMemoryAsksFor) {
  int workers = 0;
  Open(
      [&workers](TransportsOptions* pool) {
        const bool consumes = ++workers == 2;
        if (consumes) pool->link.slots = shm_wire::LinkSizes().slots;
      },
      false);
  Send("a", Filled(kBytes, 5));
  const auto got = Fetch("a");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(RdmaFetched(*pair_->consumer()).ended_ok, 1u) << Explain();
}

TEST_F(TrustTest, WhoIsNotKeptApartReadsByReference) {
  Open(nullptr, true);
  Send("a", Filled(*producer_arena_->AllocateTensor(DType::kUint8, {kBytes}), 5));
  ASSERT_TRUE(Fetch("a").ok());
  EXPECT_EQ(ShmServed(*pair_->producer()).by_reference, 1u);
  EXPECT_FALSE(absl::StrContains(ExplainProducer(), "gets copies alone"));
}

TEST(ApartTest, AnotherUsersProcessIsKeptApartAndRootIsNot) {
  EXPECT_FALSE(IsAnotherUser(1000, 1000));
  EXPECT_FALSE(IsAnotherUser(0, 1000));  // It reads whatever memory it likes.
  EXPECT_TRUE(IsAnotherUser(1001, 1000));
  EXPECT_TRUE(IsAnotherUser(1000, 0));
  EXPECT_TRUE(IsAnotherUser(-1, 1000));  // The kernel does not say.
}

// ---- A path whose hellos are answered, but which does not work ----

class LeadsNowhereTest : public TrustTest {
 protected:
  // `how` changes the answers to hellos over shared memory, until the test sets lies_ to false.
  void ExpectOtherPath(const std::function<void(shm_wire::Invitation*)>& how) {
    Open(
        [](TransportsOptions* pool) {
          pool->shm.give_up_ms = 100;
          pool->shm.join_timeout_ms = 200;
        },
        true,
        [this, how](Hello* answer) {
          if (answer->path != "shm" || !lies_) return;
          auto invitation = shm_wire::DecodeInvitation(answer->parameters);
          if (!invitation.ok()) return;  // It is the answer to a farewell.
          ++lies_told_;
          how(&*invitation);
          answer->parameters = shm_wire::EncodeInvitation(*invitation);
        });
    Send("a", Filled(kBytes, 6));
    const auto got = Fetch("a");
    ASSERT_TRUE(got.ok()) << got.status() << Explain();
    EXPECT_EQ(RdmaFetched(*pair_->consumer()).ended_ok, 1u) << Explain();
    EXPECT_TRUE(absl::StrContains(Explain(), "left since")) << Explain();
    EXPECT_GT(lies_told_, 0);
    // The path is tried again.
    lies_ = false;
    EXPECT_TRUE(TurnUntil([&] { return !absl::StrContains(Explain(), "left since"); }));
    Send("b", Filled(kBytes, 7));
    ASSERT_TRUE(Fetch("b").ok());
    EXPECT_EQ(ShmFetched(*pair_->consumer()).ended_ok, 1u) << Explain();
  }

  bool lies_ = true;
  int lies_told_ = 0;
};

TEST_F(LeadsNowhereTest, WhoInvitesAndDoesNotAnswerIsFetchedFromByAnotherPath) {
  auto silent = LocalSocket::Listen("tryst-trust-test-silent");
  ASSERT_TRUE(silent.ok()) << silent.status();
  ExpectOtherPath(
      [](shm_wire::Invitation* invitation) { invitation->socket = "tryst-trust-test-silent"; });
}

TEST_F(LeadsNowhereTest, WhoInvitesAndHangsUpIsFetchedFromByAnotherPath) {
  ExpectOtherPath([](shm_wire::Invitation* invitation) { invitation->token[0] ^= 1; });
}

}  // namespace
}  // namespace tryst
