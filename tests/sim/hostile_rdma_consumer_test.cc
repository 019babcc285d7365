// A producer's end of an RDMA channel against a consumer that says whatever it likes.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "channel/rdma/message_link.h"
#include "channel/rdma/serve_channel.h"
#include "gtest/gtest.h"
#include "rendezvous/tensor_source.h"
#include "verbs/sim/sim_nic.h"
#include "verbs/sim/sim_world.h"

namespace tryst {
namespace {

constexpr char kProducer[] = "/job:p/replica:0/task:0";
constexpr char kConsumer[] = "/job:c/replica:0/task:0";
constexpr uint32_t kMostParked = 300;

// Has nothing, ever.
class Nothing final : public TensorSource {
 public:
  void Take(int64_t, const TensorKey&, uint64_t, const Args&, DoneFn done) override {
    waiting_.push_back(std::move(done));
  }
  bool TakeHere(int64_t, TensorKey*, Place*, Taken*) override { return false; }
  bool MayTake(const TensorKey&) const override { return true; }
  void GiveBack(int64_t, const TensorKey&, Taken) override {}
  size_t asked() const { return waiting_.size(); }
  void EndAll() {
    for (DoneFn& done : std::exchange(waiting_, {})) {
      std::move(done)(absl::CancelledError("over"), Args(), Args(), Tensor(), false);
    }
  }

 private:
  std::vector<DoneFn> waiting_;
};

// Says what it is told to say as there is room for it, and listens to nothing.
class Liar final : public MessageLink::Owner {
 public:
  absl::Status OnRecord(const wire::Record&) override { return absl::OkStatus(); }
  absl::Status OnTensorPart(size_t, uint16_t, uint16_t) override { return absl::OkStatus(); }
  void OnAccepted() override {}
  void OnWritesDone() override {}
  void OnFlush() override {}
  void OnBroken(const absl::Status&) override {}
  void OnDrained() override {}
};

class HostileRdmaConsumerTest : public ::testing::Test {
 protected:
  HostileRdmaConsumerTest() : world_(1), poller_(&world_.clock()) {
    SetLogSink([](LogSeverity, const char*, int, absl::string_view) {});
    nic_ = world_.OpenNic(0, SimNicOptions());
    hostile_nic_ = world_.OpenNic(1, SimNicOptions());
    hub_ = *QueueHub::Create(nic_.get(), &poller_, 512);
    hub_->Attach();
    hostile_hub_ = *QueueHub::Create(hostile_nic_.get(), &poller_, 512);
    hostile_hub_->Attach();
    LinkOptions options;
    options.slots = 4;
    options.ring_slots = 16;
    options.message_bytes = 8192;
    link_ = *MessageLink::Create(hostile_hub_.get(), options, 1, &liar_);
    Hello hello;
    hello.worker = kConsumer;
    hello.incarnation = 2;
    hello.epoch = 1;
    hello.path = "rdma";
    hello.protocol_newest = kProtocolNewest;
    link_->DescribeTo(&hello, 5);
    ServeChannelOptions serve;
    serve.link = options;
    serve.path = "rdma";
    serve.self = kProducer;
    serve.self_incarnation = 1;
    serve.max_parked = kMostParked;
    producer_ = std::make_unique<ServeChannel>(hub_.get(), &source_, serve, hello, 6);
    absl::StatusOr<Hello> answer = absl::UnknownError("none");
    producer_->OnHello(hello, [&](absl::StatusOr<Hello> its) { answer = std::move(its); });
    TRYST_CHECK(answer.ok()) << answer.status();
    const absl::Status connected = link_->Connect(*answer);
    TRYST_CHECK(connected.ok()) << connected;
    Settle();
    TRYST_CHECK(IsServed());
  }

  ~HostileRdmaConsumerTest() override {
    producer_->Close(absl::CancelledError("over"));
    link_->Break(absl::CancelledError("over"));
    source_.EndAll();
    for (int i = 0; i < 1000 && !(producer_->Drained() && link_->drained()); ++i) Settle();
    EXPECT_TRUE(producer_->Drained());
    producer_.reset();
    link_.reset();
    hub_->Detach();
    hostile_hub_->Detach();
    SetLogSink(nullptr);
    for (const std::string& violation : world_.violations()) ADD_FAILURE() << violation;
  }

  void Settle() {
    world_.RunFor(100'000);
    while (poller_.Turn()) {
    }
  }
  bool IsServed() const { return absl::string_view(producer_->state_text()) == "connected"; }
  // False: the link has ended.
  bool Say(const wire::Record& record) {
    for (int i = 0; i < 1000; ++i) {
      if (!IsServed() || link_->broken()) return false;
      if (link_->Send(record)) {
        link_->FlushSoon();
        return true;
      }
      link_->FlushSoon();
      Settle();
    }
    return false;
  }
  static std::string KeyOf(uint32_t number, size_t bytes) {
    std::string key = absl::StrCat(kProducer, "/device:CPU:0;0000000000000001;", kConsumer,
                                   "/device:CPU:0;", number, "x");
    return key + std::string(bytes - key.size() - 4, 'x') + ";0:0";
  }
  bool SayKey(uint32_t number, const std::string& text) {
    wire::Record record;
    record.type = wire::RecordType::kKey;
    record.number = number;
    record.body = text;
    return Say(record);
  }

  SimWorld world_;
  Poller poller_;
  Nothing source_;
  Liar liar_;
  std::unique_ptr<SimNic> nic_;
  std::unique_ptr<SimNic> hostile_nic_;
  std::unique_ptr<QueueHub> hub_;
  std::unique_ptr<QueueHub> hostile_hub_;
  std::unique_ptr<MessageLink> link_;
  std::unique_ptr<ServeChannel> producer_;
};

TEST_F(HostileRdmaConsumerTest, KeysAreRememberedUpToSoManyBytes) {
  uint32_t told = 0;
  while (told < wire::kMaxKeys && SayKey(told, KeyOf(told, wire::kMaxKeyBytes))) ++told;
  EXPECT_FALSE(IsServed());
  // What is under way when the last one is refused was told, too.
  EXPECT_LE(uint64_t{told}, wire::kMaxKeysBytes / wire::kMaxKeyBytes + 64);
  EXPECT_GE(uint64_t{told}, wire::kMaxKeysBytes / wire::kMaxKeyBytes);
}

TEST_F(HostileRdmaConsumerTest, AKeyToldAnewTakesThePlaceOfTheFormer) {
  for (uint32_t i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(SayKey(i % 4, KeyOf(i, wire::kMaxKeyBytes))) << i;
  }
  EXPECT_TRUE(IsServed());
}

TEST_F(HostileRdmaConsumerTest, SoManyRequestsWaitWithoutASlot) {
  ASSERT_TRUE(SayKey(0, KeyOf(0, 200)));
  uint32_t told = 0;
  for (bool served = true; served && told < 10 * kMostParked; told += served) {
    wire::WaitsBody body;
    body.step = 1;
    body.ticket = told + 1;
    const std::string bytes = wire::EncodeWaits(body);
    wire::Record record;
    record.type = wire::RecordType::kWaits;
    record.body = bytes;
    served = Say(record);
    Settle();
  }
  EXPECT_FALSE(IsServed());
  EXPECT_LE(told, kMostParked + 2) << "the one too many, and one under way";
  EXPECT_EQ(source_.asked(), kMostParked);
}

}  // namespace
}  // namespace tryst
